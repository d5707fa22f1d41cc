// Clusters: blocks that run together and reach each other's shared memory (sm_90 and newer).
#pragma once

namespace gemm_core::ptx {

// This block's place in its cluster.
__device__ __forceinline__ unsigned int cluster_rank() {
  unsigned int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of the cluster, whole warps at a time.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

// Barriers that this thread has made exist for the whole cluster, once it has met (cluster_sync).
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// An arrival at the mbarrier that lies at this shared address in block `rank` of the cluster. For what
// TMA and wgmma wrote and read: ordinary stores of this thread need not be seen there (a release of the
// whole cluster would cost a fence of the whole device).
__device__ __forceinline__ void mbarrier_arrive_at(unsigned int barrier, unsigned int rank) {
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

}  // namespace gemm_core::ptx
