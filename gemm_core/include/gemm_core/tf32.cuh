// Floats as numbers of TF32: a float's exponents, and 10 bits of its fraction. Tensor cores ignore the
// other 13.
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core {

// x rounded to nearest, ties away from zero. A finite number stays finite: the largest floats, which
// would become infinite, are cut off instead.
__device__ __forceinline__ u32 tf32_from_float(float x) {
  constexpr float rounds_to_infinity = 0x1.ffep127f;
  const u32 bits = __float_as_uint(x);
  return (fabsf(x) < rounds_to_infinity ? bits + 0x1000 : bits) & 0xffffe000;
}

// x = large + small, two numbers of TF32; small has 13 more bits, which are to be ignored. Of two such
// pairs 3xTF32 forms all products but small by small. An infinity or NaN is the small number, beside a
// large one of 1 or -1: so it meets the other's large number alone, which is zero only where the other
// is (or less than 2^-137). Were it the large one, it would meet small ones too, of which many are zero.
__device__ __forceinline__ void split_tf32(float x, u32& large, u32& small) {
  constexpr float largest = 0x1.fffffep127f;
  const bool finite = fabsf(x) <= largest;
  large = tf32_from_float(x);
  const float rest = x - __uint_as_float(large);
  small = finite ? __float_as_uint(rest) + 0x1000 : __float_as_uint(x);  // + rounds what is ignored
  if (!finite) large &= 0xbf800000;
}

}  // namespace gemm_core
