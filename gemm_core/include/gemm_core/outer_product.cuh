// Floats on CUDA cores: sums in registers, and the outer products of a column of A and a row of B
// that are added to them.
#pragma once

namespace gemm_core {

// sums[i][j] += row[i] * column[j].
template <int M, int N>
__device__ __forceinline__ void add_outer_product(float (&sums)[M][N], const float (&row)[M],
                                                  const float (&column)[N]) {
  // Down one column, up the next: two consecutive operations share an operand, which saves a read of
  // the register file.
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int step = 0; step < M; ++step) {
      const int i = j % 2 == 0 ? step : M - 1 - step;
      sums[i][j] = fmaf(row[i], column[j], sums[i][j]);
    }
}

}  // namespace gemm_core
