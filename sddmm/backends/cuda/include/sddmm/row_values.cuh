// The elements of a chunk in the type of their sums, and stores of sums as elements of a row.
#pragma once

#include "gemm_core/ptx/cvt.cuh"
#include "gemm_core/ptx/st_global.cuh"
#include "sddmm/chunk.cuh"
#include "sddmm/value.cuh"

namespace sddmm {

__device__ __forceinline__ void unpack(u32 word, float& low, float& high, f16) {
  gemm_core::ptx::floats_from_f16x2(word, low, high);
}
__device__ __forceinline__ void unpack(u32 word, float& low, float& high, bf16) {
  gemm_core::ptx::floats_from_bf16x2(word, low, high);
}

// sums[i] += weight * element i of the chunk, whose elements are of type T.
template <class T, class S, int COUNT>
__device__ __forceinline__ void add_scaled(S (&sums)[COUNT], const Chunk& chunk, S weight) {
  static_assert(COUNT == CHUNK_ELEMENTS<T>, "one sum for each element of a chunk");
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
      float low, high;
      unpack(chunk.word[i / 2], low, high, T{});
      sums[i] += weight * low, sums[i + 1] += weight * high;
    }
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] += weight * element<T>(chunk, i);
  }
}

// Word i of a vector of elements of type OUT.
template <class OUT, class S, int COUNT>
__device__ __forceinline__ u32 packed_word(const S (&sums)[COUNT], int i) {
  if constexpr (sizeof(OUT) == 2) {
    return Numeric<OUT>::pair(static_cast<float>(sums[2 * i]), static_cast<float>(sums[2 * i + 1]));
  } else {
    return __float_as_uint(static_cast<float>(sums[i]));
  }
}

// Stores the sums to to[0 .. COUNT - 1], as far as there are so many elements. STORE_BYTES: the
// number of bytes of one store; `to` and the end of the elements are multiples of it.
template <int STORE_BYTES, class OUT, class S, int COUNT>
__device__ __forceinline__ void store_elements(OUT* to, const S (&sums)[COUNT], int elements) {
  constexpr int BYTES = STORE_BYTES < COUNT * static_cast<int>(sizeof(OUT))
                            ? STORE_BYTES
                            : COUNT * static_cast<int>(sizeof(OUT));
  if constexpr (BYTES <= static_cast<int>(sizeof(OUT)) || sizeof(OUT) == 8) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
      if (i < elements) to[i] = Narrow<OUT>::from(sums[i]);
  } else {
    constexpr int PER_STORE = BYTES / sizeof(OUT), WORDS = BYTES / 4;
#pragma unroll
    for (int i = 0; i < COUNT / PER_STORE; ++i) {
      u32 words[WORDS];
#pragma unroll
      for (int w = 0; w < WORDS; ++w) words[w] = packed_word<OUT>(sums, i * WORDS + w);
      if (i * PER_STORE < elements) gemm_core::ptx::st_global(to + i * PER_STORE, words);
    }
  }
}

}  // namespace sddmm
