// Host twin of gemm_core/ptx/mbarrier.cuh: a barrier's eight bytes hold its count, the arrivals and
// bytes that the current phase still expects, and the phase.
#pragma once

namespace gemm_core::ptx {

struct Mbarrier {
  short count, expected;
  int bytes : 28;
  unsigned phase : 4;
};
inline Mbarrier& mbarrier_at(unsigned address, unsigned char* memory = shared) {
  if (address % 8 || address + 8 > sizeof(shared)) std::abort();
  return *reinterpret_cast<Mbarrier*>(memory + address);
}
inline void mbarrier_init(unsigned barrier, unsigned count) {
  mbarrier_at(barrier) = {static_cast<short>(count), static_cast<short>(count), 0, 0};
}
inline void mbarrier_complete(Mbarrier& b) {
  if (b.expected == 0 && b.bytes == 0) b.expected = b.count, ++b.phase;
}
inline void mbarrier_arrive(unsigned barrier) {
  Mbarrier& b = mbarrier_at(barrier);
  --b.expected;
  mbarrier_complete(b);
}
inline void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
  mbarrier_at(barrier).bytes += bytes;
  mbarrier_arrive(barrier);
}
inline void mbarrier_arrive_after_cp_async(unsigned barrier) { mbarrier_arrive(barrier); }
inline void mbarrier_wait(unsigned barrier, unsigned parity) {
  while (mbarrier_at(barrier).phase % 2 == parity) emulation::yield();
}

}  // namespace gemm_core::ptx
