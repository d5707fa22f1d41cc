// Stores of neighbouring results by one thread, in as few instructions as their address allows.
#pragma once

#include "sddmm/value.cuh"

namespace sddmm {

// out[0 .. COUNT - 1] = sums, COUNT being 4 or 8.
template <class OUT, int COUNT>
__device__ __forceinline__ void store_run(OUT* out, const float (&sums)[COUNT]) {
  static_assert(COUNT == 4 || COUNT == 8, "a vector of 8 or 16 bytes");
  [[maybe_unused]] const unsigned long long address = reinterpret_cast<unsigned long long>(out);
  if constexpr (sizeof(OUT) == 2) {
    using Vector = typename gemm_core::Select<COUNT == 8, uint4, int2>::type;
    if (address % 4 != 0) {
      out[0] = Narrow<OUT>::from(sums[0]);
#pragma unroll
      for (int i = 1; i + 1 < COUNT; i += 2)
        *reinterpret_cast<u32*>(out + i) = Numeric<OUT>::pair(sums[i], sums[i + 1]);
      out[COUNT - 1] = Narrow<OUT>::from(sums[COUNT - 1]);
      return;
    }
    u32 words[COUNT / 2];
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) words[i] = Numeric<OUT>::pair(sums[2 * i], sums[2 * i + 1]);
    if (address % sizeof(Vector) == 0) {
      if constexpr (COUNT == 8) {
        *reinterpret_cast<uint4*>(out) = make_uint4(words[0], words[1], words[2], words[3]);
      } else {
        *reinterpret_cast<int2*>(out) =
            make_int2(static_cast<int>(words[0]), static_cast<int>(words[1]));
      }
    } else {
#pragma unroll
      for (int i = 0; i < COUNT / 2; ++i) *reinterpret_cast<u32*>(out + 2 * i) = words[i];
    }
  } else if (sizeof(OUT) == 4 && address % 16 == 0) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
      *reinterpret_cast<float4*>(out + i) =
          make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) out[i] = Narrow<OUT>::from(sums[i]);
  }
}

}  // namespace sddmm
