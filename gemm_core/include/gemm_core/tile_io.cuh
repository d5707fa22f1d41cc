// Copies tiles from global to shared memory by cp.async.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/swizzle.cuh"

namespace gemm_core {

// Copies the first `elements` of a chunk of 16 bytes to shared memory and fills up with zeros. The
// source is at any element. By words, asynchronously (the caller commits and waits), where these
// divide the address and the elements: always of floats; of halves where rows have even lengths and
// begin at words; else element by element.
template <class T>
__device__ __forceinline__ void copy_unaligned_chunk(unsigned char* to, const T* source,
                                                     int elements) {
  constexpr int SIZE = sizeof(T), WORD = 4;
  const int bytes = elements * SIZE;
  const auto* const from = reinterpret_cast<const unsigned char*>(source);
  if (SIZE >= WORD || (reinterpret_cast<i64>(source) | bytes) % WORD == 0) {
    const u32 target = ptx::shared_address(to);
#pragma unroll
    for (int i = 0; i < 16; i += WORD) ptx::cp_async_4(target + i, from + i, i < bytes);
    return;
  }
#pragma unroll 1
  for (int e = 0; e < 16 / SIZE; ++e) reinterpret_cast<T*>(to)[e] = e < elements ? source[e] : T{};
}

// Copies tiles of ROWS x COLS elements, one after the other along k, by THREADS threads, into the
// shared-memory layout `Layout`. ROWS_ARE_K: the rows of a tile are consecutive k, else its
// columns. Elements beyond k become zeros. Elements beyond the other edge only reach outputs that
// are not stored: the copy repeats the last row or chunk, or writes zeros. ALIGNED: every source
// row starts at a multiple of 16 bytes, and so do all chunks. Copies are asynchronous (the caller
// commits and waits), unless copy_unaligned_chunk says otherwise.
//
// A full tile costs one instruction per copy: the address is that of the tile, the same for all
// threads, and a 32-bit offset that is the same for all tiles.
template <class T, class Layout, int ROWS, int COLS, int THREADS, bool ROWS_ARE_K, bool ALIGNED>
struct TileCopy {
  static constexpr int CHUNK = 16 / sizeof(T), ROW_CHUNKS = COLS / CHUNK;
  static constexpr int ROW_STEP = THREADS / ROW_CHUNKS;
  static constexpr int CHUNKS_PER_THREAD = (ROWS + ROW_STEP - 1) / ROW_STEP;
  // Each of COPYING threads copies chunks of one column; others copy none. NO_TAIL: each thread has
  // CHUNKS_PER_THREAD.
  static constexpr int COPYING = ROW_STEP * ROW_CHUNKS;
  static constexpr bool NO_TAIL = ROWS % ROW_STEP == 0 && COPYING == THREADS;

  const unsigned char* tile;       // the next tile
  i64 tile_step;                   // bytes from one tile to the next
  u32 offsets[CHUNKS_PER_THREAD];  // bytes from the tile to each of this thread's chunks
  int row, chunk;                  // of this thread's first chunk
  int extent;                      // existing rows or columns, in the direction other than k
  int chunk_extent;                // existing elements of each chunk, as far as `extent` goes

  // `first_tile` points to the first element of the first tile. A tile spans less than 2^32 bytes.
  __device__ __forceinline__ TileCopy(const T* first_tile, i64 pitch, int extent_, int thread)
      : tile(reinterpret_cast<const unsigned char*>(first_tile)),
        tile_step((ROWS_ARE_K ? ROWS * pitch : COLS) * static_cast<i64>(sizeof(T))),
        row(COPYING == THREADS || thread < COPYING ? thread / ROW_CHUNKS : ROWS),
        chunk(thread % ROW_CHUNKS),
        extent(extent_),
        chunk_extent(CHUNK) {
    int column = chunk * CHUNK;
    if (ROWS_ARE_K && column + CHUNK > extent) {
      if (extent % CHUNK == 0) {
        column = extent - CHUNK;
      } else {
        chunk_extent = column < extent ? extent - column : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < CHUNKS_PER_THREAD; ++i) {
      const int r = row + i * ROW_STEP;
      const u32 source_row = ROWS_ARE_K ? r : r < extent ? r : extent - 1;
      offsets[i] = (source_row * static_cast<u32>(pitch) + column) * static_cast<u32>(sizeof(T));
    }
  }

  // Whether the next tile, of which k_left of k exist, consists of full chunks.
  __device__ __forceinline__ bool is_full(int k_left) const {
    if (!ALIGNED) return false;
    return ROWS_ARE_K ? k_left >= ROWS && (extent >= COLS || extent % CHUNK == 0) : k_left >= COLS;
  }

  // Copies part `part` of PARTS of the next tile, which is full, to shared address `target`.
  template <int PARTS>
  __device__ __forceinline__ void copy_full(u32 target, int part) const {
    constexpr int part_chunks = (CHUNKS_PER_THREAD + PARTS - 1) / PARTS;
#pragma unroll
    for (int j = 0; j < part_chunks; ++j) {
      const int i = part * part_chunks + j;
      if (i >= CHUNKS_PER_THREAD || (!NO_TAIL && row + i * ROW_STEP >= ROWS)) break;
      ptx::cp_async_16(target + Layout::offset(row + i * ROW_STEP, chunk), tile + offsets[i]);
    }
  }

  // Copies the next tile, of which k_left of k exist, to byte `target` of shared memory.
  __device__ __forceinline__ void copy_guarded(unsigned char* shared, u32 target, int k_left) const {
    const u32 base = ptx::shared_address(shared);
    const int k_of_chunk = k_left - chunk * CHUNK;
    const int row_elements = ROWS_ARE_K         ? chunk_extent
                             : k_of_chunk < 0     ? 0
                             : k_of_chunk < CHUNK ? k_of_chunk
                                                  : CHUNK;
#pragma unroll
    for (int i = 0; i < CHUNKS_PER_THREAD; ++i) {
      const int r = row + i * ROW_STEP;
      if (!NO_TAIL && r >= ROWS) break;
      const u32 chunk_target = target + Layout::offset(r, chunk);
      const int elements = !ROWS_ARE_K || r < k_left ? row_elements : 0;
      if constexpr (ALIGNED) {
        ptx::cp_async_16(base + chunk_target, tile + offsets[i],
                         elements * static_cast<int>(sizeof(T)));
      } else {
        copy_unaligned_chunk(shared + chunk_target, reinterpret_cast<const T*>(tile + offsets[i]),
                             elements);
      }
    }
  }

  // Moves on to the next tile.
  __device__ __forceinline__ void advance() { tile += tile_step; }
};

// Copies the tiles of both operands. In a stage of shared memory the tile of A precedes that of B.
template <class CopyA, class CopyB, int A_BYTES>
struct StageCopy {
  CopyA a;
  CopyB b;

  __device__ __forceinline__ bool is_full(int k_left) const {
    return a.is_full(k_left) && b.is_full(k_left);
  }
  template <int PARTS>
  __device__ __forceinline__ void copy_full(u32 target, int part) const {
    a.template copy_full<PARTS>(target, part);
    b.template copy_full<PARTS>(target + A_BYTES, part);
  }
  __device__ __forceinline__ void copy(unsigned char* shared, u32 target, int k_left) const {
    if (is_full(k_left)) {
      copy_full<1>(ptx::shared_address(shared) + target, 0);
    } else {
      a.copy_guarded(shared, target, k_left);
      b.copy_guarded(shared, target + A_BYTES, k_left);
    }
  }
  __device__ __forceinline__ void advance() {
    a.advance();
    b.advance();
  }
};

}  // namespace gemm_core
