// blockIdx.x, read again at each call.
#pragma once

namespace gemm_core::ptx {

// The compiler keeps values computed from blockIdx.x in registers, even through a main loop; values
// computed from block_index() it computes again.
__device__ __forceinline__ int block_index() {
  int index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}

}  // namespace gemm_core::ptx
