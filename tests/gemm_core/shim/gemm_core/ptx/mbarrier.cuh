// Host twin of gemm_core/ptx/mbarrier.cuh: a barrier's eight bytes hold its count, what is still
// expected of this phase, and the phase.
#pragma once

namespace gemm_core::ptx {

struct Mbarrier {
  unsigned short count, expected;
  unsigned phase;
};
inline Mbarrier& mbarrier_at(unsigned address) {
  if (address % 8 || address + 8 > sizeof(shared)) std::abort();
  return *reinterpret_cast<Mbarrier*>(shared + address);
}
inline void mbarrier_init(unsigned barrier, unsigned count) {
  mbarrier_at(barrier) = {static_cast<unsigned short>(count), static_cast<unsigned short>(count), 0};
}
inline void mbarrier_arrive(unsigned barrier) {
  Mbarrier& b = mbarrier_at(barrier);
  if (--b.expected == 0) b.expected = b.count, ++b.phase;
}
inline void mbarrier_arrive_after_copies(unsigned barrier) { mbarrier_arrive(barrier); }
inline void mbarrier_wait(unsigned barrier, unsigned parity) {
  while (mbarrier_at(barrier).phase % 2 == parity) shim::yield();
}

}  // namespace gemm_core::ptx
