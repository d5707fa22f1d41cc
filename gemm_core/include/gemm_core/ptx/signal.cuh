// Flags of 0 or 1 in memory that several GPUs reach, changed by compare-and-swap in system scope, as
// torch's symmetric memory does; and the GPU's clock.
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core::ptx {

// Changes a word from 0 to 1, after all that this thread and the kernels before it have written;
// false if it is 1.
__device__ __forceinline__ bool try_put_signal(int* at) {
  int before;
  asm volatile("atom.global.release.sys.cas.b32 %0, [%1], 0, 1;"
               : "=r"(before)
               : "l"(at)
               : "memory");
  return before == 0;
}

// Changes a word from 1 to 0, before all that this thread and the kernels after it read; false if
// it is 0.
__device__ __forceinline__ bool try_take_signal(int* at) {
  int before;
  asm volatile("atom.global.acquire.sys.cas.b32 %0, [%1], 1, 0;"
               : "=r"(before)
               : "l"(at)
               : "memory");
  return before == 1;
}

// The time of %globaltimer in ns; neither its start nor its resolution is specified.
__device__ __forceinline__ i64 globaltimer_ns() {
  i64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Ends the kernel with an error.
__device__ __forceinline__ void trap() { asm volatile("trap;"); }

}  // namespace gemm_core::ptx
