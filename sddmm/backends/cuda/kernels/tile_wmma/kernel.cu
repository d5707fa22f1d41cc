// SDDMM by WMMA tiles: as tile_mma, on gemm_core's WMMA main loop, whose fragments' layout tells
// where a sum lies. The published SDDMM log's way, with tiles of many warps. Limit: as tile_mma,
// and padded shared memory.
#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/mainloop_wmma.cuh"
#include "sddmm/tile_kernel.cuh"

using namespace sddmm;

using Mainloop =
    gemm_core::MainloopWmma<float, SDDMM_FRAGMENT_M, SDDMM_FRAGMENT_N, SDDMM_BLOCK_M, SDDMM_BLOCK_N,
                            SDDMM_BLOCK_K, SDDMM_WARPS_M, SDDMM_WARPS_N, SDDMM_STAGES, true, 8,
                            false, true, SDDMM_ALIGNED_A, SDDMM_ALIGNED_B>;

extern "C" __global__ void __launch_bounds__(Mainloop::THREADS, SDDMM_MIN_BLOCKS)
    sddmm_kernel(const TileArguments<SDDMM_ELEMENT, SDDMM_OUTPUT> arguments) {
  extern __shared__ __align__(128) unsigned char shared[];
  sampled_tile<Mainloop, SDDMM_BLOCK_M, SDDMM_BLOCK_N>(
      arguments, shared, [](const Mainloop::Accumulators& acc, const auto& sums) {
        gemm_core::store_wmma<Mainloop, SDDMM_FRAGMENT_M, SDDMM_FRAGMENT_N>(acc, sums, 0, 0);
      });
}
