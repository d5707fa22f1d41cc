// The logarithm to base 2 in one instruction.
#pragma once

namespace gemm_core::ptx {

// log2(x) with an error of 2^-22 for x from 0.5 to 2, and of two units in the last place elsewhere;
// -inf where x is below the least normal float.
__device__ __forceinline__ float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace gemm_core::ptx
