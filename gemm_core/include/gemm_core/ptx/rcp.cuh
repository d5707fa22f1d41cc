// The reciprocal in one instruction.
#pragma once

namespace gemm_core::ptx {

// 1 / x, wrong by one unit in the last place at most.
__device__ __forceinline__ float rcp(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace gemm_core::ptx
