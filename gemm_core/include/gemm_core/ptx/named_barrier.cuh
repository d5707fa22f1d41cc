// Barriers of some warps of a block, told apart by an id of 1 to 15; id 0 is that of __syncthreads.
#pragma once

namespace gemm_core::ptx {

// Waits until `threads` threads, of whole warps, have arrived here or in named_barrier_arrive.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace gemm_core::ptx
