// The first WMMA rung: one warp computes 16 x 16 of C, fragments straight from global memory. Adds
// the tensor cores to the naive rung; limited by its loads, as no two warps share one.
#include "gemm_core/fragment.cuh"
#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/wmma.cuh"

using namespace gemm_core;

extern "C" __global__ void __launch_bounds__(32)
    gemm(const GEMM_ELEMENT* __restrict__ a, const GEMM_ELEMENT* __restrict__ b,
         GEMM_OUTPUT* __restrict__ c, int m, int n, int k, i64 pitch_a, i64 pitch_b, i64 pitch_c) {
  using Wmma = ptx::Wmma<16, 16>;
  const int tiles_n = n / 16;
  const int m0 = blockIdx.x / tiles_n * 16, n0 = blockIdx.x % tiles_n * 16;
  Select<sizeof(GEMM_ACCUMULATOR) == 4, float[8], u32[4]>::type sums = {};
  for (int k0 = 0; k0 < k; k0 += 16) {
    u32 from_a[8], from_b[8];
    Wmma::load_a(from_a, a + m0 * pitch_a + k0, static_cast<int>(pitch_a));
#if GEMM_B_ROWS_ARE_N
    Wmma::load_b_n_rows(from_b, b + n0 * pitch_b + k0, static_cast<int>(pitch_b));
    Wmma::multiply_n_rows(sums, from_a, from_b);
#else
    Wmma::load_b_k_rows(from_b, b + k0 * pitch_b + n0, static_cast<int>(pitch_b));
    Wmma::multiply_k_rows(sums, from_a, from_b);
#endif
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const fragment::Position at = fragment::wmma_accumulator<16, 16>(threadIdx.x, i);
    c[(m0 + at.row) * pitch_c + n0 + at.column] = Numeric<GEMM_OUTPUT>::from_float(sum_of(sums, i));
  }
}
