// Host twin of gemm_core/ptx/cluster.cuh: blocks run one after the other, so only alone.
#pragma once

namespace gemm_core::ptx {

inline unsigned cluster_rank() { std::abort(); }
inline void cluster_sync() { std::abort(); }
inline void fence_mbarrier_init() { std::abort(); }
inline void mbarrier_arrive_at(unsigned, unsigned) { std::abort(); }

}  // namespace gemm_core::ptx
