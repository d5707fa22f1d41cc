// Layouts of a tile in shared memory: the byte offset of each 16-byte chunk of a row.
#pragma once

namespace gemm_core {

// Rows of CHUNKS 16-byte chunks. The chunk index is XORed with the row, so that the same chunk of
// eight rows falls into eight different bank groups: ldmatrix and cp.async have no bank conflicts,
// without padding. Rows of 128 bytes give TMA's 128-byte swizzle (fragments.py: swizzle_128b); two
// rows of 64 bytes share one line of banks, hence the shift.
template <int CHUNKS>
struct Swizzle {
  static_assert(CHUNKS >= 2 && (CHUNKS & (CHUNKS - 1)) == 0, "a power of two");
  static constexpr int MASK = CHUNKS >= 8 ? 7 : CHUNKS - 1;
  static constexpr int SHIFT = CHUNKS >= 8 ? 0 : CHUNKS == 4 ? 1 : 2;
  // The bytes of a row, and the number of rows after which chunks lie the same way again.
  static constexpr int ROW_BYTES = CHUNKS * 16, PERIOD = 8;

  // Bytes from the start of the tile.
  static __device__ __forceinline__ int offset(int row, int chunk) {
    return (row * CHUNKS + (chunk ^ ((row >> SHIFT) & MASK))) * 16;
  }
};

// Padding instead of a swizzle: rows of COLS elements of T with PAD more between them.
template <class T, int COLS, int PAD>
struct Padded {
  static constexpr int PITCH = COLS + PAD;  // elements
  static constexpr int ROW_BYTES = PITCH * static_cast<int>(sizeof(T)), PERIOD = 1;
  static_assert(ROW_BYTES % 16 == 0, "chunks are aligned");

  static __device__ __forceinline__ int offset(int row, int chunk) {
    return row * ROW_BYTES + chunk * 16;
  }
};

}  // namespace gemm_core
