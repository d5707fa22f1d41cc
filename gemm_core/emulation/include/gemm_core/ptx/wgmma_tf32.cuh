// Host twin of gemm_core/ptx/wgmma_tf32.cuh.
#pragma once

#include "gemm_core/ptx/wgmma.cuh"

namespace gemm_core::ptx {

template <int COUNT>
inline void wgmma_k8(float (&d)[COUNT], unsigned long long a, unsigned long long b,
                     bool accumulate) {
  wgmma_product<8>(d, accumulate, [&](WgmmaOperands& operands) {
    for (int k = 0; k < 8; ++k) {
      for (int row = 0; row < 64; ++row) operands.a[row][k] = of_row<float>(a, row, k);
      for (int column = 0; column < 2 * COUNT; ++column)
        operands.b[column][k] = of_row<float>(b, column, k);
    }
  });
}

}  // namespace gemm_core::ptx
