// TF32 numbers: floats with 10 bits of fraction. Tensor cores ignore the other 13 bits.
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core {

// x rounded to nearest, ties away from zero. A finite number stays finite: the largest floats,
// which would round to infinity, are truncated instead.
__device__ __forceinline__ u32 tf32_from_float(float x) {
  constexpr float rounds_to_infinity = 0x1.ffep127f;
  const u32 bits = __float_as_uint(x);
  return (fabsf(x) < rounds_to_infinity ? bits + 0x1000 : bits) & 0xffffe000;
}

// Splits x = large + small into two TF32 numbers; the last 13 bits of `small` are not to be read.
// 3xTF32 forms every product of two such pairs except small x small. An infinity or NaN becomes the
// small number, next to a large one of 1 or -1: it is then multiplied only by the other operand's
// large number, which is zero only where the other operand is (or is below 2^-137). As the large
// number it would also be multiplied by small numbers, many of which are zero, and 0 x infinity is
// NaN.
__device__ __forceinline__ void split_tf32(float x, u32& large, u32& small) {
  constexpr float largest = 0x1.fffffep127f;
  const bool finite = fabsf(x) <= largest;
  large = tf32_from_float(x);
  const float rest = x - __uint_as_float(large);
  small = finite ? __float_as_uint(rest) + 0x1000 : __float_as_uint(x);  // + rounds the last 13 bits
  if (!finite) large &= 0xbf800000;
}

}  // namespace gemm_core
