// Clusters: blocks that run together and reach each other's shared memory (sm_90 and newer).
#pragma once

namespace gemm_core::ptx {

// This block's rank in its cluster.
__device__ __forceinline__ unsigned int cluster_rank() {
  unsigned int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits for all threads of all blocks of the cluster; called by whole warps. It orders no stores of
// theirs: a release would wait until the whole device sees them.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

// Waits for all threads of all blocks of the cluster, and makes what each stored to shared memory
// visible to the others.
__device__ __forceinline__ void cluster_sync_memory() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" :::
               "memory");
}

// Loads four floats at this shared address, a multiple of 16, in block `rank` of the cluster.
__device__ __forceinline__ float4 load_from_cluster(unsigned int address, unsigned int rank) {
  float4 x;
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %4, %5; "
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
      : "r"(address), "r"(rank)
      : "memory");
  return x;
}

// Makes the mbarriers that this thread has initialised visible to the cluster, after cluster_sync.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives on the mbarrier at this shared address in block `rank` of the cluster. It orders what TMA
// and wgmma read and wrote, not ordinary stores of this thread: a release at cluster scope would
// cost a fence of the whole device.
__device__ __forceinline__ void mbarrier_arrive_cluster(unsigned int barrier, unsigned int rank) {
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

}  // namespace gemm_core::ptx
