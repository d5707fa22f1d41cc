// Host twin of gemm_core/ptx/signal.cuh.
#pragma once

#include <ctime>

#include "gemm_core/numeric.cuh"

namespace gemm_core::ptx {

inline bool try_put_signal(int* at) {
  int expected = 0;
  return __atomic_compare_exchange_n(at, &expected, 1, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

inline bool try_take_signal(int* at) {
  int expected = 1;
  return __atomic_compare_exchange_n(at, &expected, 0, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

inline i64 globaltimer_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return i64{now.tv_sec} * 1000000000 + now.tv_nsec;
}

inline void trap() { std::abort(); }

}  // namespace gemm_core::ptx
