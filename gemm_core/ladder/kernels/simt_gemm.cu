// GEMM on CUDA cores: adds to the naive rung tiles in shared memory and a TM x TN tile of outputs in
// each thread's registers. Limit: one fused multiply-add a lane and clock, of floats or of pairs of
// halves, an eighth of the tensor cores' rate or less.
#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/mainloop_simt.cuh"
#include "gemm_core/raster.cuh"

using namespace gemm_core;

using Mainloop =
    MainloopSimt<GEMM_ELEMENT, GEMM_BLOCK_M, GEMM_BLOCK_N, GEMM_BLOCK_K, GEMM_WARPS_M, GEMM_WARPS_N,
                 GEMM_THREAD_M, GEMM_THREAD_N, GEMM_BUFFERS, GEMM_VECTOR, GEMM_ASYNC, GEMM_PAD,
                 GEMM_SPREAD, GEMM_B_ROWS_ARE_N, GEMM_ALIGNED_A, GEMM_ALIGNED_B>;

extern "C" __global__ void __launch_bounds__(Mainloop::THREADS, GEMM_MIN_BLOCKS)
    gemm(const GEMM_ELEMENT* __restrict__ a, const GEMM_ELEMENT* __restrict__ b,
         GEMM_OUTPUT* __restrict__ c, int m, int n, int k, i64 pitch_a, i64 pitch_b, i64 pitch_c) {
  extern __shared__ __align__(128) unsigned char shared[];
  const auto [m0, n0] = tile_origin<GEMM_RASTER_GROUP, GEMM_BLOCK_M, GEMM_BLOCK_N>(m, n);
  Mainloop::Accumulators acc = {};
  Mainloop::run(acc, reinterpret_cast<GEMM_ELEMENT*>(shared), a, pitch_a, b, pitch_b, m0, n0, m, n,
                k);
  const EpilogueDense<GEMM_OUTPUT, GEMM_PAIRED_C> epilogue{c, pitch_c, m, n};
#pragma unroll
  for (int i = 0; i < Mainloop::TM; ++i)
#pragma unroll
    for (int j = 0; j < Mainloop::TN; j += 2) {
      const int row = m0 + Mainloop::row_of(i), column = n0 + Mainloop::column_of(j);
      if constexpr (Mainloop::TN == 1) {
        epilogue(row, column, sum_of(acc[i], j));
      } else {
        epilogue(row, column, sum_of(acc[i], j), sum_of(acc[i], j + 1));
      }
    }
}
