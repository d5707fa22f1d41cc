// Host twin of gemm_core/ptx/lg2.cuh.
#pragma once

namespace gemm_core::ptx {

inline float lg2(float x) { return log2f(x < 0x1p-126f ? 0.f : x); }

}  // namespace gemm_core::ptx
