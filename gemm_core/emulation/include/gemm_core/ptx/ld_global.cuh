// Host twin of gemm_core/ptx/ld_global.cuh. What is prefetched is read, so that a sanitizer sees it.
#pragma once

namespace gemm_core::ptx {

template <class T>
inline T load_read_only(const T* from) {
  return *from;
}

inline void prefetch_l2(const void* address) {
  [[maybe_unused]] const volatile char read = *static_cast<const volatile char*>(address);
}

}  // namespace gemm_core::ptx
