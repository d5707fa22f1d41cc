// Host twin of gemm_core/ptx/setmaxnreg.cuh: a CPU has no registers to move.
#pragma once

namespace gemm_core::ptx {

template <int COUNT>
inline void registers_release() {}
template <int COUNT>
inline void registers_claim() {}

}  // namespace gemm_core::ptx
