// Host twin of gemm_core/ptx/mma.cuh, from the PTX ISA's fragment figures.
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core::ptx {

struct Operands {
  u32 a[4], b[2];
};

template <class T>
inline float half_of(u32 word, int h) {
  return Numeric<T>::to_float(T{static_cast<u16>(word >> 16 * h)});
}

template <class T>
inline void multiply_k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  emulation::with_warp(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}}, [&](const Operands* all, int lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) {
        const u32 from_a = all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2];
        const u32 from_b = all[column * 4 + k % 8 / 2].b[k / 8];
        d[i] += half_of<T>(from_a, k % 2) * half_of<T>(from_b, k % 2);
      }
    }
  });
}
inline void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, f16) {
  multiply_k16<f16>(d, a, b0, b1);
}
inline void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, bf16) {
  multiply_k16<bf16>(d, a, b0, b1);
}
inline void mma_m16n8k8_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  emulation::with_warp(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}}, [&](const Operands* all, int lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < 8; ++k) {
        const u32 from_a = all[row % 8 * 4 + k % 4].a[row / 8 + k / 4 * 2];
        const u32 from_b = all[column * 4 + k % 4].b[k / 4];
        // The tensor core reads the bits of TF32 only.
        d[i] += __uint_as_float(from_a & ~0x1fffu) * __uint_as_float(from_b & ~0x1fffu);
      }
    }
  });
}

}  // namespace gemm_core::ptx
