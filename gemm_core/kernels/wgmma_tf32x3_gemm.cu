// wgmma GEMM of floats by 3xTF32: adds to the mma.sync rung Hopper's own instruction, fed from shared
// memory, and warpgroups that split each operand once a block instead of once a warp. Limit: a third
// of the tensor cores' TF32 rate, and shared memory, which both parts go through.
#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/mainloop_wgmma_tf32x3.cuh"
#include "gemm_core/raster.cuh"

using namespace gemm_core;

using Mainloop =
    MainloopWgmmaTf32x3<GEMM_STAGES, GEMM_B_ROWS_ARE_N, GEMM_ALIGNED_A, GEMM_ALIGNED_B>;

extern "C" __global__ void __launch_bounds__(Mainloop::THREADS, 1)
    gemm(const GEMM_ELEMENT* __restrict__ a, const GEMM_ELEMENT* __restrict__ b,
         GEMM_OUTPUT* __restrict__ c, int m, int n, int k, i64 pitch_a, i64 pitch_b, i64 pitch_c) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int tiles_m = (m + Mainloop::BM - 1) / Mainloop::BM;
  const int tiles_n = (n + Mainloop::BN - 1) / Mainloop::BN;
  const TileIndex tile = raster<GEMM_RASTER_GROUP>(blockIdx.x, tiles_m, tiles_n);
  const int m0 = tile.m * Mainloop::BM, n0 = tile.n * Mainloop::BN;
  const EpilogueDense<GEMM_OUTPUT, GEMM_PAIRED_C> epilogue{c, pitch_c, m, n};
  Mainloop::run(shared, a, pitch_a, b, pitch_b, m0, n0, m, n, k,
                [&](const Mainloop::Accumulators& sums) {
#pragma unroll
                  for (int i = 0; i < 64; i += 2) {
                    const fragment::Position at = fragment::wgmma_d(threadIdx.x % 128, i);
                    epilogue(m0 + Mainloop::first_row() + at.row, n0 + at.column, sums[i],
                             sums[i + 1]);
                  }
                });
}
