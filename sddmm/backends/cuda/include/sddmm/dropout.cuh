// Which attention weights are dropped: the rule of sddmm/dropout.py, by Philox 4x32-10 (Salmon,
// Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3).
#pragma once

#include "sddmm/value.cuh"

namespace sddmm {

// Word 0 for the counter (c0, c1, c2, 0) and the key (k0, k1).
__device__ __forceinline__ u32 philox_word(u32 c0, u32 c1, u32 c2, u32 k0, u32 k1) {
  u32 c3 = 0;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const auto first = static_cast<unsigned long long>(c0) * 0xD2511F53u;
    const auto second = static_cast<unsigned long long>(c2) * 0xCD9E8D57u;
    c0 = static_cast<u32>(second >> 32) ^ c1 ^ k0;
    c1 = static_cast<u32>(second);
    c2 = static_cast<u32>(first >> 32) ^ c3 ^ k1;
    c3 = static_cast<u32>(first);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return c0;
}

// The factor of each weight: 0 or `kept`. Every factor is 1 if `seed` is null.
struct Dropout {
  const unsigned long long* seed;
  i64 threshold;  // of the words: a weight is dropped if its word is less
  float kept;

  __device__ __forceinline__ float factor(int head, int position) const {
    if (seed == nullptr) return 1.f;
    const unsigned long long key = *seed;
    const u32 word = philox_word(static_cast<u32>(position), 0, static_cast<u32>(head),
                                 static_cast<u32>(key), static_cast<u32>(key >> 32));
    return word < threshold ? 0.f : kept;
  }
};

}  // namespace sddmm
