// cp.async: copies from global to shared memory that run beside the arithmetic (sm_80 and newer).
#pragma once

namespace gemm_core::ptx {

// Shared memory is addressed by 32 bits here and in ldmatrix.cuh: half the address arithmetic.
__device__ __forceinline__ unsigned int shared_address(const void* pointer) {
  return static_cast<unsigned int>(__cvta_generic_to_shared(pointer));
}

// 16 bytes to shared `target`: `bytes` (0..16) from global `source`, the rest zeros. Both addresses
// are multiples of 16; `source` is not read if `bytes` is 0. Past L1: a tile is read once a block.
__device__ __forceinline__ void cp_async_16(unsigned int target, const void* source, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(target), "l"(source), "r"(bytes)
               : "memory");
}

// All 16 bytes: an instruction shorter.
__device__ __forceinline__ void cp_async_16(unsigned int target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(target), "l"(source) : "memory");
}

// Four bytes, both addresses multiples of 4; zeros unless `exists`.
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

// Until at most PENDING of this thread's newest groups are still under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

}  // namespace gemm_core::ptx
