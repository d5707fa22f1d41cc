// The power of two in one instruction.
#pragma once

namespace gemm_core::ptx {

// 2^x with a relative error of 2^-22; 0 where the result is below the least normal float.
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace gemm_core::ptx
