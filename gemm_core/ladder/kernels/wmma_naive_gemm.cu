// The first WMMA rung: one warp computes 16 x 16 of C, with fragments loaded straight from global
// memory. Adds the tensor cores to the naive rung. Limit: its loads, because no two warps share an
// operand.
#include "gemm_core/fragment.cuh"
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"
#include "gemm_core/ptx/wmma.cuh"

using namespace gemm_core;

// What the host defines (gemm_core/ladder/spec.py).
struct Config {
  using Element = GEMM_ELEMENT;                            // of A and B
  using Output = GEMM_OUTPUT;                              // of C
  using Accumulator = GEMM_ACCUMULATOR;                    // float or f16
  static constexpr int BLOCK_M = GEMM_BLOCK_M;             // rows of C per block
  static constexpr int BLOCK_N = GEMM_BLOCK_N;             // columns of C per block
  static constexpr int BLOCK_K = GEMM_BLOCK_K;             // elements of k per step
  static constexpr int THREADS = GEMM_THREADS;             // per block
  static constexpr bool B_ROWS_ARE_N = GEMM_B_ROWS_ARE_N;  // B is stored as n rows of k
};

constexpr int TILE = 16;
static_assert(Config::BLOCK_M == TILE && Config::BLOCK_N == TILE && Config::BLOCK_K == TILE &&
                  Config::THREADS == 32,
              "a block is one warp with one fragment");

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    gemm(const Config::Element* __restrict__ a, const Config::Element* __restrict__ b,
         Config::Output* __restrict__ c, int m, int n, int k, i64 pitch_a, i64 pitch_b, i64 pitch_c) {
  using Wmma = ptx::Wmma<TILE, TILE>;
  const int tiles_n = n / TILE;
  const int m0 = blockIdx.x / tiles_n * TILE, n0 = blockIdx.x % tiles_n * TILE;
  Select<sizeof(Config::Accumulator) == 4, float[8], u32[4]>::type sums = {};
  for (int k0 = 0; k0 < k; k0 += TILE) {
    u32 fragment_a[8], fragment_b[8];
    Wmma::load_a(fragment_a, a + m0 * pitch_a + k0, static_cast<int>(pitch_a));
    if constexpr (Config::B_ROWS_ARE_N) {
      Wmma::load_b_n_rows(fragment_b, b + n0 * pitch_b + k0, static_cast<int>(pitch_b));
      Wmma::multiply_n_rows(sums, fragment_a, fragment_b);
    } else {
      Wmma::load_b_k_rows(fragment_b, b + k0 * pitch_b + n0, static_cast<int>(pitch_b));
      Wmma::multiply_k_rows(sums, fragment_a, fragment_b);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const fragment::Position at = fragment::wmma_accumulator<TILE, TILE>(threadIdx.x, i);
    c[(m0 + at.row) * pitch_c + n0 + at.column] =
        Numeric<Config::Output>::from_float(sum_of(sums, i));
  }
}
GEMM_CORE_CHECK_LIST(gemm)
