// mbarrier: barriers in shared memory on which threads arrive and wait by phase (sm_80 and newer).
#pragma once

namespace gemm_core::ptx {

// `barrier` is the shared address of 8 bytes, a multiple of 8. A phase completes after `count`
// arrivals; the first phase has parity 0.
__device__ __forceinline__ void mbarrier_init(unsigned int barrier, unsigned int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// What this thread did before is seen by whoever waits for the phase.
__device__ __forceinline__ void mbarrier_arrive(unsigned int barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier)
               : "memory");
}

// An arrival; the phase now waits for `bytes` too, which TMA brings (tma.cuh).
__device__ __forceinline__ void mbarrier_arrive_expecting(unsigned int barrier, unsigned int bytes) {
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}

// An arrival when the copies (cp_async.cuh) that this thread has begun are done, which counts among
// those expected.
__device__ __forceinline__ void mbarrier_arrive_after_copies(unsigned int barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Until the phase of this parity has completed; a barrier just made counts the phase before its
// first, of parity 1, as completed.
__device__ __forceinline__ void mbarrier_wait(unsigned int barrier, unsigned int parity) {
  unsigned int done;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}

}  // namespace gemm_core::ptx
