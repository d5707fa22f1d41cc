// Sixteen bytes of a row of an operand, or eight: what a lane loads at once.
#pragma once

#include "gemm_core/numeric.cuh"

namespace sddmm {

template <int BYTES>
struct alignas(BYTES) ChunkOf {
  gemm_core::u32 word[BYTES / 4];
};
using Chunk = ChunkOf<16>;

// The number of elements of T in a chunk.
template <class T, class Of = Chunk>
constexpr int CHUNK_ELEMENTS = sizeof(Of) / sizeof(T);

// Element i of a chunk of floats or of doubles.
template <class T, int BYTES>
__device__ __forceinline__ T element(const ChunkOf<BYTES>& chunk, int i) {
  static_assert(sizeof(T) >= 4, "elements of 16 bits stay packed");
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(chunk.word[i]);
  } else {
    return __hiloint2double(chunk.word[2 * i + 1], chunk.word[2 * i]);
  }
}

// The unsigned integer of BYTES bytes.
template <int BYTES>
struct UnsignedOf;
template <>
struct UnsignedOf<2> {
  using type = unsigned short;
};
template <>
struct UnsignedOf<4> {
  using type = unsigned int;
};
template <>
struct UnsignedOf<8> {
  using type = unsigned long long;
};

// Loads from global memory. IS_ONCE: hardly any other thread loads the same, so its line leaves the
// caches first.
template <bool IS_ONCE, class T>
__device__ __forceinline__ T load_global(const T* from) {
  if constexpr (IS_ONCE) {
    return __ldcs(from);
  } else {
    return *from;
  }
}

// Loads the chunk that begins at element `first` of a row of k elements; elements past k are zeros.
// LOAD_BYTES: the number of bytes of one load; every row starts at a multiple of it, and so does
// its end. NO_TAIL: no chunk reaches past k. IS_ONCE: see load_global.
template <int LOAD_BYTES, bool NO_TAIL, bool IS_ONCE = false, int BYTES = 16, class T>
__device__ __forceinline__ ChunkOf<BYTES> load_chunk(const T* row, int first, int k) {
  static_assert(LOAD_BYTES <= BYTES && BYTES % 8 == 0, "a chunk is one load, or several");
  ChunkOf<BYTES> chunk{};
  if constexpr (LOAD_BYTES == 16) {
    if (NO_TAIL || first < k) {
      const uint4 words = load_global<IS_ONCE>(reinterpret_cast<const uint4*>(row + first));
      chunk = {words.x, words.y, words.z, words.w};
    }
  } else {
    using Piece = typename UnsignedOf<LOAD_BYTES>::type;
    constexpr int piece_elements = LOAD_BYTES / sizeof(T);
    unsigned long long halves[BYTES / 8] = {};
#pragma unroll
    for (int i = 0; i < BYTES / LOAD_BYTES; ++i) {
      const int element = first + i * piece_elements;
      const unsigned long long piece =
          NO_TAIL || element < k
              ? load_global<IS_ONCE>(reinterpret_cast<const Piece*>(row + element))
              : Piece{0};
      halves[i * LOAD_BYTES / 8] |= piece << (i * LOAD_BYTES % 8 * 8);
    }
#pragma unroll
    for (int i = 0; i < BYTES / 4; ++i)
      chunk.word[i] = static_cast<gemm_core::u32>(halves[i / 2] >> (i % 2 * 32));
  }
  return chunk;
}

}  // namespace sddmm
