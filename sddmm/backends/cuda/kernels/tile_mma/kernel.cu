// SDDMM by dense tiles: gemm_core's mma.sync main loop over the tiles that hold nonzeros, of which
// the epilogue stores the sampled entries only. Limit: the tensor cores' rate for whole tiles,
// however few of their entries are wanted.
#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/mainloop_mma.cuh"
#include "sddmm/tile_kernel.cuh"

using namespace sddmm;

using Mainloop =
    gemm_core::MainloopMma<SDDMM_ELEMENT, SDDMM_BLOCK_M, SDDMM_BLOCK_N, SDDMM_BLOCK_K, SDDMM_WARPS_M,
                           SDDMM_WARPS_N, SDDMM_STAGES, true, SDDMM_ALIGNED_A, SDDMM_ALIGNED_B,
                           SDDMM_SPLIT>;

extern "C" __global__ void __launch_bounds__(Mainloop::THREADS, SDDMM_MIN_BLOCKS)
    sddmm_kernel(const TileArguments<SDDMM_ELEMENT, SDDMM_OUTPUT> arguments) {
  extern __shared__ __align__(128) unsigned char shared[];
  sampled_tile<Mainloop, SDDMM_BLOCK_M, SDDMM_BLOCK_N>(
      arguments, shared, [](const Mainloop::Accumulators& acc, const auto& sums) {
        gemm_core::store_mma<Mainloop>(acc, sums, 0, 0);
      });
}
