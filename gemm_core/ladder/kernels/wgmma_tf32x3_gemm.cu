// wgmma GEMM of floats by 3xTF32: adds to the mma.sync rung Hopper's own instruction, and warpgroups
// that split B once a block instead of once a warp; A is split on its way to registers. Limit: a third
// of the tensor cores' TF32 rate, and shared memory, which three fifths of that rate keep busy.
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
  const auto origin = [=] {
    return tile_origin<GEMM_RASTER_GROUP, Mainloop::BM, Mainloop::BN>(m, n);
  };
  const auto [m0, n0] = origin();
  Mainloop::run(shared, a, pitch_a, b, pitch_b, m0, n0, m, n, k,
                [&](const Mainloop::Accumulators& sums) {
                  // Anew: the main loop leaves no register to keep it in.
                  const TileOrigin corner = origin();
                  const EpilogueDense<GEMM_OUTPUT, GEMM_PAIRED_C> epilogue{c, pitch_c, m, n};
#pragma unroll
                  for (int i = 0; i < 64; i += 2) {
                    const fragment::Position at = fragment::wgmma_d(threadIdx.x % 128, i);
                    epilogue(corner.m0 + Mainloop::first_row() + at.row, corner.n0 + at.column,
                             sums[i], sums[i + 1]);
                  }
                });
}
