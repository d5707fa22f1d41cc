// TMA: copies boxes of a tensor between global and shared memory, issued by one thread (sm_90 and
// newer).
#pragma once

namespace gemm_core::ptx {

// A tensor map that the host has encoded (tensor_map.py), passed as a __grid_constant__ parameter.
struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

// Loads a map ahead of its first use.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
}

// Copies the box at element (x, y, z), x along the rows, to shared `target`, a multiple of 1024 for
// boxes under the 128-byte swizzle. Elements outside the tensor become zeros. `barrier` counts the
// bytes.
__device__ __forceinline__ void tma_load(unsigned int target, const TensorMap& map, int x, int y,
                                         int z, unsigned int barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];"
      :
      : "r"(target), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}

// Copies the box to the first BLOCKS blocks of the cluster, at the same shared addresses.
template <int BLOCKS>
__device__ __forceinline__ void tma_load_multicast(unsigned int target, const TensorMap& map, int x,
                                                   int y, int z, unsigned int barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;"
      :
      : "r"(target), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier),
        "h"(static_cast<unsigned short>((1 << BLOCKS) - 1))
      : "memory");
}

// Copies the box at shared `source` to element (x, y, z) of the tensor, without the chunks of 16 bytes
// that begin outside the tensor, so its rows must end at multiples of 16 bytes. The thread's copies
// since its last tma_store_commit form a group.
__device__ __forceinline__ void tma_store(const TensorMap& map, int x, int y, int z,
                                          unsigned int source) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
               :
               : "l"(&map), "r"(x), "r"(y), "r"(z), "r"(source)
               : "memory");
}

__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until shared memory has been read by all but the newest PENDING of this thread's groups.
template <int PENDING>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

}  // namespace gemm_core::ptx
