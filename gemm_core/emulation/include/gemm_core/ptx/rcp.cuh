// Host twin of gemm_core/ptx/rcp.cuh.
#pragma once

namespace gemm_core::ptx {

inline float rcp(float x) { return 1 / x; }

}  // namespace gemm_core::ptx
