// ld.global.nc: loads of what no thread writes during the launch, which the compiler may move before
// stores; and prefetch.global, which begins to bring a line into L2.
#pragma once

namespace gemm_core::ptx {

// T: of 2 bytes, which are its `bits`, or float or double.
template <class T>
__device__ __forceinline__ T load_read_only(const T* from) {
  if constexpr (sizeof(T) == 2)
    return T{__ldg(&from->bits)};
  else
    return __ldg(from);
}

__device__ __forceinline__ void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

}  // namespace gemm_core::ptx
