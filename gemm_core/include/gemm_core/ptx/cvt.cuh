// Conversions between number formats, one instruction each.
#pragma once

namespace gemm_core::ptx {

__device__ __forceinline__ float float_from_f16(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

__device__ __forceinline__ unsigned short f16_from_float(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float float_from_bf16(unsigned short x) {
  return __uint_as_float(static_cast<unsigned int>(x) << 16);
}

__device__ __forceinline__ unsigned short bf16_from_float(float x) {
  unsigned short y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

// Both halves of a register.
__device__ __forceinline__ void floats_from_f16x2(unsigned int x, float& low, float& high) {
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
      : "=f"(low), "=f"(high)
      : "r"(x));
}

__device__ __forceinline__ void floats_from_bf16x2(unsigned int x, float& low, float& high) {
  low = __uint_as_float(x << 16);
  high = __uint_as_float(x & 0xffff0000u);
}

// Two of them in one register.
__device__ __forceinline__ unsigned int f16x2_from_floats(float low, float high) {
  unsigned int y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

__device__ __forceinline__ unsigned int bf16x2_from_floats(float low, float high) {
  unsigned int y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

}  // namespace gemm_core::ptx
