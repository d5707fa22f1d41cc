// Host twin of gemm_core/ptx/wgmma_half.cuh.
#pragma once

#include "gemm_core/ptx/wgmma.cuh"

namespace gemm_core::ptx {

template <bool B_ROWS_ARE_K = false, class T, int COUNT>
inline void wgmma_k16(float (&d)[COUNT], unsigned long long a, unsigned long long b, bool accumulate,
                      T) {
  wgmma_product<16>(d, accumulate, [&](WgmmaOperands& operands) {
    for (int k = 0; k < 16; ++k) {
      for (int row = 0; row < 64; ++row) operands.a[row][k] = of_row<T>(a, row, k);
      for (int column = 0; column < 2 * COUNT; ++column)
        operands.b[column][k] = B_ROWS_ARE_K ? of_k_row<T>(b, k, column) : of_row<T>(b, column, k);
    }
  });
}

}  // namespace gemm_core::ptx
