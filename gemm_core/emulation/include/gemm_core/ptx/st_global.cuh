// Host twin of gemm_core/ptx/st_global.cuh. Words that are not aligned are an error of the GPU.
#pragma once

namespace gemm_core::ptx {

template <int COUNT>
inline void st_global(void* to, const unsigned (&words)[COUNT]) {
  if (reinterpret_cast<unsigned long long>(to) % (4 * COUNT) != 0) __builtin_trap();
  std::memcpy(to, words, 4 * COUNT);
}

}  // namespace gemm_core::ptx
