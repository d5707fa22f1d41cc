// Host twin of gemm_core/ptx/named_barrier.cuh.
#pragma once

namespace gemm_core::ptx {

inline emulation::Barrier& named_barrier(int id) {
  static emulation::Barrier all[8][16];  // of each block of a cluster
  if (id < 1 || id > 15) std::abort();
  return all[emulation::rank()][id];
}
inline void named_barrier_sync(int id, int threads) { named_barrier(id).wait(threads); }
inline void named_barrier_arrive(int id, int threads) { named_barrier(id).arrive(threads); }

}  // namespace gemm_core::ptx
