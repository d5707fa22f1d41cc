// Host twin of gemm_core/ptx/cluster.cuh.
#pragma once

#include "gemm_core/ptx/mbarrier.cuh"

// The blocks of such a kernel run in pairs; library.cpp passes this to emulation::cluster_blocks.
#define EMULATED_CLUSTER_BLOCKS 2

namespace gemm_core::ptx {

inline unsigned cluster_rank() { return emulation::rank(); }
inline void cluster_sync() { emulation::cluster_barrier.wait(int(emulation::fibers.size())); }
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive_cluster(unsigned barrier, unsigned rank) {
  Mbarrier& b = mbarrier_at(barrier, emulation::shared_of(rank));
  --b.expected;
  mbarrier_complete(b);
}

}  // namespace gemm_core::ptx
