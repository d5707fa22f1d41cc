// GEMM by WMMA: adds to the naive WMMA rung tiles in shared memory, several fragments a warp, and,
// rung by rung, padding, cp.async, more stages, buffered fragments and a block order for L2. Limit:
// wmma loads whole fragments by rules of its own, and on Hopper its instructions are those of
// mma.sync, 60 % of the tensor cores' rate.
#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/mainloop_wmma.cuh"
#include "gemm_core/raster.cuh"

using namespace gemm_core;

using Mainloop =
    MainloopWmma<GEMM_ACCUMULATOR, GEMM_FRAGMENT_M, GEMM_FRAGMENT_N, GEMM_BLOCK_M, GEMM_BLOCK_N,
                 GEMM_BLOCK_K, GEMM_WARPS_M, GEMM_WARPS_N, GEMM_STAGES, GEMM_ASYNC, GEMM_PAD,
                 GEMM_BUFFERED, GEMM_B_ROWS_ARE_N, GEMM_ALIGNED_A, GEMM_ALIGNED_B>;

extern "C" __global__ void __launch_bounds__(Mainloop::THREADS, 1)
    gemm(const GEMM_ELEMENT* __restrict__ a, const GEMM_ELEMENT* __restrict__ b,
         GEMM_OUTPUT* __restrict__ c, int m, int n, int k, i64 pitch_a, i64 pitch_b, i64 pitch_c) {
  extern __shared__ __align__(128) unsigned char shared[];
  const auto [m0, n0] = tile_origin<GEMM_RASTER_GROUP, GEMM_BLOCK_M, GEMM_BLOCK_N>(m, n);
  Mainloop::Accumulators acc = {};
  Mainloop::run(acc, shared, a, pitch_a, b, pitch_b, m0, n0, m, n, k);
  const EpilogueDense<GEMM_OUTPUT, GEMM_PAIRED_C> epilogue{c, pitch_c, m, n};
  store_wmma<Mainloop, GEMM_FRAGMENT_M, GEMM_FRAGMENT_N>(acc, epilogue, m0, n0);
}
