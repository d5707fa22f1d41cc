// Host twin of gemm_core/ptx/wgmma.cuh: multiplies immediately, from the shared memory that the
// descriptor names. Every thread computes its own elements.
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core::ptx {

inline unsigned long long wgmma_descriptor(u32 address) { return address >> 4; }
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int PENDING>
inline void wgmma_wait() {}
inline void fence_proxy_async() {}

// Element (row, k) of a tile of 128-byte rows under the 128-byte swizzle, truncated to TF32.
inline float tf32_of(u32 bits) { return __uint_as_float(bits & ~0x1fffu); }
inline float swizzled_tf32(unsigned long long tile, int row, int k) {
  const unsigned byte = unsigned(tile << 4) + 128 * row + 4 * k;
  u32 bits;
  std::memcpy(&bits, shared + (byte ^ (byte >> 7 & 7) << 4), 4);
  return tf32_of(bits);
}
struct WgmmaA {
  u32 a[4];
};
inline void wgmma_m64n128k8_tf32(float (&d)[64], const u32 (&a)[4], unsigned long long b,
                                 bool accumulate) {
  emulation::with_warp(WgmmaA{{a[0], a[1], a[2], a[3]}}, [&](const WgmmaA* all, int lane) {
    for (int i = 0; i < 64; ++i) {
      const int half = i / 2 % 2, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float sum = accumulate ? d[i] : 0.f;
      for (int k = 0; k < 8; ++k)
        sum += tf32_of(all[lane / 4 * 4 + k % 4].a[half + k / 4 * 2]) * swizzled_tf32(b, column, k);
      d[i] = sum;
    }
  });
}

}  // namespace gemm_core::ptx
