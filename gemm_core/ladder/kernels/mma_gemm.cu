// mma.sync GEMM: adds to the WMMA rungs ldmatrix with an XOR swizzle (no padding), explicit fragments
// and a k step ahead in registers. Limit on Hopper: mma.sync feeds the tensor cores at about 60 % of
// what wgmma does.
#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/mainloop_mma.cuh"
#include "gemm_core/raster.cuh"

using namespace gemm_core;

using Mainloop = MainloopMma<GEMM_ELEMENT, GEMM_BLOCK_M, GEMM_BLOCK_N, GEMM_BLOCK_K, GEMM_WARPS_M,
                             GEMM_WARPS_N, GEMM_STAGES, GEMM_B_ROWS_ARE_N, GEMM_ALIGNED_A,
                             GEMM_ALIGNED_B, GEMM_SPLIT_TF32>;

extern "C" __global__ void __launch_bounds__(Mainloop::THREADS, 1)
    gemm(const GEMM_ELEMENT* __restrict__ a, const GEMM_ELEMENT* __restrict__ b,
         GEMM_OUTPUT* __restrict__ c, int m, int n, int k, i64 pitch_a, i64 pitch_b, i64 pitch_c) {
  extern __shared__ __align__(128) unsigned char shared[];
  const auto [m0, n0] = tile_origin<GEMM_RASTER_GROUP, GEMM_BLOCK_M, GEMM_BLOCK_N>(m, n);
  Mainloop::Accumulators acc = {};
  Mainloop::run(acc, shared, a, pitch_a, b, pitch_b, m0, n0, m, n, k);
  store_mma<Mainloop>(acc, EpilogueDense<GEMM_OUTPUT, GEMM_PAIRED_C>{c, pitch_c, m, n}, m0, n0);
}
