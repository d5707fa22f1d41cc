// Barriers among some of a block's warps.
#pragma once

namespace gemm_core::ptx {

// By `threads` threads, a multiple of 32. index: 1 .. 15; 0 is __syncthreads.
__device__ __forceinline__ void named_barrier(int index, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(index), "r"(threads) : "memory");
}

}  // namespace gemm_core::ptx
