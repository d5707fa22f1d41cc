// Host twin of gemm_core/ptx/wgmma.cuh: multiplies immediately, from the shared memory that the
// descriptors name.
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core::ptx {

inline unsigned long long wgmma_descriptor(u32 address) { return address >> 4; }
inline unsigned long long wgmma_descriptor_rows_of_k(u32 address, u32 panel_bytes) {
  return address >> 4 | (unsigned long long)(panel_bytes >> 4) << 16;
}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int PENDING>
inline void wgmma_wait() {}
inline void fence_proxy_async() {}

// The element of T at this byte of a tile under the 128-byte swizzle, as a float; a float is truncated
// to TF32.
template <class T>
inline float swizzled(unsigned byte) {
  T element;
  std::memcpy(&element, shared + (byte ^ (byte >> 7 & 7) << 4), sizeof(T));
  if constexpr (sizeof(T) == 4) return __uint_as_float(__float_as_uint(element) & ~0x1fffu);
  else return Numeric<T>::to_float(element);
}
// Element (row, k) of a tile of 128-byte rows of k.
template <class T>
inline float of_row(unsigned long long tile, int row, int k) {
  return swizzled<T>(unsigned(tile << 4) + 128 * row + int(sizeof(T)) * k);
}
// Element (k, column) of panels of 64 columns, one k a row.
template <class T>
inline float of_k_row(unsigned long long tile, int k, int column) {
  const unsigned start = unsigned(tile & 0x3fff) << 4, panel = unsigned(tile >> 16 & 0x3fff) << 4;
  return swizzled<T>(start + column / 64 * panel + 128 * k + column % 64 * int(sizeof(T)));
}

// A (64 x 16) and B (256 x 16) of a product, as floats, by warpgroup and block of the cluster.
struct WgmmaOperands {
  emulation::Barrier barrier;
  float a[64][16], b[256][16];
};
inline WgmmaOperands& wgmma_operands() {
  static WgmmaOperands all[8][8];
  return all[emulation::rank()][threadIdx.x / 128];
}

// Adds up `count` products in order; the sanitizer's checks would take most of the time.
__attribute__((optimize("O2"), no_sanitize("undefined"))) inline float dot(const float* x,
                                                                           const float* y,
                                                                           int count, float sum) {
  for (int k = 0; k < count; ++k) sum += x[k] * y[k];
  return sum;
}

// d = A B + (accumulate ? d : 0), K elements of k. load(operands) is called by one thread of the
// warpgroup once all have arrived.
template <int K, int COUNT, class Load>
inline void wgmma_product(float (&d)[COUNT], bool accumulate, Load load) {
  WgmmaOperands& operands = wgmma_operands();
  operands.barrier.wait(128);
  if (threadIdx.x % 128 == 0) load(operands);
  operands.barrier.wait(128);
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  for (int i = 0; i < COUNT; ++i) {
    const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    d[i] = dot(operands.a[row], operands.b[column], K, accumulate ? d[i] : 0.f);
  }
}

struct WgmmaA {
  u32 a[4];
};
inline void wgmma_m64n128k8_tf32(float (&d)[64], const u32 (&a)[4], unsigned long long b,
                                 bool accumulate) {
  const auto tf32 = [](u32 bits) { return __uint_as_float(bits & ~0x1fffu); };
  emulation::with_warp(WgmmaA{{a[0], a[1], a[2], a[3]}}, [&](const WgmmaA* all, int lane) {
    for (int i = 0; i < 64; ++i) {
      const int half = i / 2 % 2, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float sum = accumulate ? d[i] : 0.f;
      for (int k = 0; k < 8; ++k)
        sum += tf32(all[lane / 4 * 4 + k % 4].a[half + k / 4 * 2]) * of_row<float>(b, column, k);
      d[i] = sum;
    }
  });
}

}  // namespace gemm_core::ptx
