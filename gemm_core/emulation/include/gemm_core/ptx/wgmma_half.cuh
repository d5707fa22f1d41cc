// Host twin of gemm_core/ptx/wgmma_half.cuh.
#pragma once

#include "gemm_core/ptx/wgmma.cuh"

namespace gemm_core::ptx {

template <class T>
inline float swizzled_half(unsigned long long tile, int row, int k) {
  const unsigned byte = unsigned(tile << 4) + 128 * row + 2 * k;
  T half;
  std::memcpy(&half, shared + (byte ^ (byte >> 7 & 7) << 4), 2);
  return Numeric<T>::to_float(half);
}
template <class T, int COUNT>
inline void wgmma_k16(float (&d)[COUNT], unsigned long long a, unsigned long long b, bool accumulate,
                      T) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  for (int i = 0; i < COUNT; ++i) {
    const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    float sum = accumulate ? d[i] : 0.f;
    for (int k = 0; k < 16; ++k)
      sum += swizzled_half<T>(a, row, k) * swizzled_half<T>(b, column, k);
    d[i] = sum;
  }
  emulation::with_warp(0, [](const int*, int) {});
}

}  // namespace gemm_core::ptx
