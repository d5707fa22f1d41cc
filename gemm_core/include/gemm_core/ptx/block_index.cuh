// blockIdx.x, read anew where it is asked for.
#pragma once

namespace gemm_core::ptx {

// The compiler keeps what follows from blockIdx.x in registers, through a main loop if it must; what
// follows from this it computes twice.
__device__ __forceinline__ int block_index() {
  int index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}

}  // namespace gemm_core::ptx
