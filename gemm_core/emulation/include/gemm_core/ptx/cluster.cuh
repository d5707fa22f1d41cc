// Host twin of gemm_core/ptx/cluster.cuh.
#pragma once

#include "gemm_core/ptx/mbarrier.cuh"

// The blocks of such a kernel run in pairs, unless its macros say otherwise; library.cpp passes this to
// emulation::cluster_blocks.
#ifndef EMULATED_CLUSTER_BLOCKS
#define EMULATED_CLUSTER_BLOCKS 2
#endif

namespace gemm_core::ptx {

inline unsigned cluster_rank() { return emulation::rank(); }
inline void cluster_sync() { emulation::cluster_barrier.wait(emulation::fiber_count); }
inline void cluster_sync_memory() { cluster_sync(); }
inline float4 load_from_cluster(unsigned address, unsigned rank) {
  if (address % 16 || address + 16 > sizeof(shared)) std::abort();
  float4 x;
  std::memcpy(&x, emulation::shared_of(rank) + address, 16);
  return x;
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive_cluster(unsigned barrier, unsigned rank) {
  Mbarrier& b = mbarrier_at(barrier, emulation::shared_of(rank));
  --b.expected;
  mbarrier_complete(b);
}

}  // namespace gemm_core::ptx
