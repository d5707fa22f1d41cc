// Host twin of gemm_core/ptx/wgmma.cuh: multiplies at once, reading shared memory as the descriptor
// says. Every thread computes its own elements.
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core::ptx {

inline unsigned long long wgmma_descriptor(u32 address) { return address; }
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int PENDING>
inline void wgmma_wait() {}
inline void fence_stores_for_wgmma() {}

// Element (row, k) of a tile of 128-byte rows under the 128-byte swizzle, cut off to TF32.
inline float swizzled_tf32(unsigned long long tile, int row, int k) {
  const unsigned byte = unsigned(tile) + 128 * row + 4 * k;
  u32 bits;
  std::memcpy(&bits, shared + (byte ^ (byte >> 7 & 7) << 4), 4);
  return __uint_as_float(bits & ~0x1fffu);
}
inline void wgmma_m64n128k8_tf32(float (&d)[64], unsigned long long a, unsigned long long b,
                                 bool accumulate) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  for (int i = 0; i < 64; ++i) {
    const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    float sum = accumulate ? d[i] : 0.f;
    for (int k = 0; k < 8; ++k) sum += swizzled_tf32(a, row, k) * swizzled_tf32(b, column, k);
    d[i] = sum;
  }
  shim::with_warp(0, [](const int*, int) {});
}

}  // namespace gemm_core::ptx
