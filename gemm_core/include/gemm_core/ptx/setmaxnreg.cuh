// setmaxnreg: moves registers from one warpgroup of a block to another (sm_90a only).
#pragma once

namespace gemm_core::ptx {

// Called by all four warps of a warpgroup. COUNT: registers per thread from now on, a multiple of
// 8.
template <int COUNT>
__device__ __forceinline__ void registers_release() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void registers_claim() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

}  // namespace gemm_core::ptx
