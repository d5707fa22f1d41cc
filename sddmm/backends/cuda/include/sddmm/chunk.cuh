// Sixteen bytes of a row of an operand.
#pragma once

#include "gemm_core/numeric.cuh"

namespace sddmm {

struct alignas(16) Chunk {
  gemm_core::u32 word[4];
};

// The unsigned integer of so many bytes.
template <int BYTES>
struct Piece;
template <>
struct Piece<2> {
  using type = unsigned short;
};
template <>
struct Piece<4> {
  using type = unsigned int;
};
template <>
struct Piece<8> {
  using type = unsigned long long;
};

// Elements `first` .. of a row of k, zeros beyond. Rows start at multiples of BYTES, of which k
// elements are a multiple too. WHOLE: the chunk ends before k.
template <int BYTES, bool WHOLE, class T>
__device__ __forceinline__ Chunk load_chunk(const T* row, int first, int k) {
  Chunk chunk{};
  if constexpr (BYTES == 16) {
    if (WHOLE || first < k) {
      const uint4 four = *reinterpret_cast<const uint4*>(row + first);
      chunk = {four.x, four.y, four.z, four.w};
    }
  } else {
    using P = typename Piece<BYTES>::type;
    constexpr int each = BYTES / sizeof(T);
    unsigned long long half[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 16 / BYTES; ++i) {
      const int at = first + i * each;
      const unsigned long long piece =
          WHOLE || at < k ? *reinterpret_cast<const P*>(row + at) : P{0};
      half[i * BYTES / 8] |= piece << (i * BYTES % 8 * 8);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      chunk.word[i] = static_cast<gemm_core::u32>(half[i / 2] >> (i % 2 * 32));
  }
  return chunk;
}

}  // namespace sddmm
