// mbarrier: barriers in shared memory on which threads arrive and wait for phases (sm_80 and
// newer).
#pragma once

namespace gemm_core::ptx {

// `barrier` is the shared address of 8 bytes, a multiple of 8. A phase completes after `count`
// arrivals; the first phase has parity 0.
__device__ __forceinline__ void mbarrier_init(unsigned int barrier, unsigned int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Arrives; whoever waits for the phase sees what this thread wrote before.
__device__ __forceinline__ void mbarrier_arrive(unsigned int barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier)
               : "memory");
}

// Arrives, and makes the phase wait for `bytes` of TMA loads too (tma.cuh).
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned int barrier, unsigned int bytes) {
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}

// Arrives when the cp.async copies that this thread has issued are done; counts among the expected
// arrivals.
__device__ __forceinline__ void mbarrier_arrive_after_cp_async(unsigned int barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits until the phase of this parity has completed. On a new barrier the phase of parity 1, which
// precedes the first, counts as completed.
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
