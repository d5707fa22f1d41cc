// Host twin of gemm_core/ptx/ex2.cuh.
#pragma once

namespace gemm_core::ptx {

inline float ex2(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.f : y;
}

}  // namespace gemm_core::ptx
