// cp.async: copies from global to shared memory that run beside the arithmetic (sm_80 and newer).
#pragma once

namespace gemm_core::ptx {

// The 32-bit address in shared memory that cp.async, ldmatrix and mbarrier take.
__device__ __forceinline__ unsigned int shared_address(const void* pointer) {
  return static_cast<unsigned int>(__cvta_generic_to_shared(pointer));
}

// Copies `bytes` (0..16) from global `source` to shared `target` and fills up to 16 with zeros.
// Both addresses are multiples of 16; `source` is not read if `bytes` is 0. Bypasses L1, because a
// block reads a tile once.
__device__ __forceinline__ void cp_async_16(unsigned int target, const void* source, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(target), "l"(source), "r"(bytes)
               : "memory");
}

// Copies all 16 bytes, which takes one instruction less.
__device__ __forceinline__ void cp_async_16(unsigned int target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(target), "l"(source) : "memory");
}

// Copies eight bytes, or writes zeros unless `exists`. Both addresses are multiples of 8.
__device__ __forceinline__ void cp_async_8(unsigned int target, const void* source, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
               :
               : "r"(target), "l"(source), "r"(exists ? 8 : 0)
               : "memory");
}

// Copies four bytes, or writes zeros unless `exists`. Both addresses are multiples of 4.
__device__ __forceinline__ void cp_async_4(unsigned int target, const void* source, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :
               : "r"(target), "l"(source), "r"(exists ? 4 : 0)
               : "memory");
}

__device__ __forceinline__ void cp_async_4(unsigned int target, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(target), "l"(source) : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most PENDING of this thread's newest groups are still in flight.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

}  // namespace gemm_core::ptx
