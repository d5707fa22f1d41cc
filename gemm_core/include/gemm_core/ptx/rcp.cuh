// The reciprocal in one instruction.
#pragma once

namespace gemm_core::ptx {

// 1 / x, wrong by one unit in the last place at most; infinite where x is below the least normal
// float, and 0 where the result is.
__device__ __forceinline__ float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace gemm_core::ptx
