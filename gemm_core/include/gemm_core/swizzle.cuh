// Where a 16-byte chunk of a tile row lies in shared memory.
#pragma once

namespace gemm_core {

// Rows of CHUNKS 16-byte chunks, the chunk XORed with the row, so that eight rows of one column of
// chunks fall into eight different bank groups: ldmatrix and cp.async are free of conflicts without
// padding. Rows of 128 bytes are the 128-byte swizzle of TMA (fragments.py: swizzle_128b); two rows
// of 64 bytes share one line of banks, hence the shift.
template <int CHUNKS>
struct Swizzle {
  static_assert(CHUNKS >= 2 && (CHUNKS & (CHUNKS - 1)) == 0, "a power of two");
  static constexpr int mask = CHUNKS >= 8 ? 7 : CHUNKS - 1;
  static constexpr int shift = CHUNKS >= 8 ? 0 : CHUNKS == 4 ? 1 : 2;

  // The pattern repeats after this many rows.
  static constexpr int period = (mask + 1) << shift;

  // Bytes from the start of the tile.
  static __device__ __forceinline__ int at(int row, int chunk) {
    return (row * CHUNKS + (chunk ^ ((row >> shift) & mask))) * 16;
  }
};

// The other remedy: rows of COLS elements of T, PAD more between them. PAD 0 is plain.
template <class T, int COLS, int PAD>
struct Padded {
  static constexpr int pitch = COLS + PAD;  // elements
  static_assert(pitch * sizeof(T) % 16 == 0, "chunks are aligned");

  static __device__ __forceinline__ int at(int row, int chunk) {
    return row * pitch * static_cast<int>(sizeof(T)) + chunk * 16;
  }
};

}  // namespace gemm_core
