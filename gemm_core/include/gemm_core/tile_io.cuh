// Tiles from global to shared memory.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/swizzle.cuh"

namespace gemm_core {

// Copies tiles of ROWS x COLS elements, one after the other along k, by THREADS threads, into the
// shared-memory layout `Layout`. K_DOWN: k runs down the rows, else along them. What lies beyond k
// becomes zeros. What lies beyond the other edge belongs to outputs that nobody stores: it repeats
// the last row or chunk, or is zeros. ALIGNED: every source row starts at a multiple of 16 bytes;
// then copies are asynchronous (commit and wait are the caller's), else of single elements.
//
// A whole tile costs one instruction a copy: the address is that of the tile, the same for all
// threads, and an offset of 32 bits that no tile changes.
template <class T, class Layout, int ROWS, int COLS, int THREADS, bool K_DOWN, bool ALIGNED>
struct TileCopy {
  static constexpr int PER_CHUNK = 16 / sizeof(T), CHUNKS = COLS / PER_CHUNK;
  static constexpr int ROW_STEP = THREADS / CHUNKS, COUNT = (ROWS + ROW_STEP - 1) / ROW_STEP;
  static constexpr bool EVEN = ROWS % ROW_STEP == 0;
  static_assert(THREADS % CHUNKS == 0, "a thread keeps to one column of chunks");

  const unsigned char* tile;  // the next one
  i64 tile_step;              // bytes from one to the next
  u32 offsets[COUNT];         // bytes from the tile to each of this thread's chunks
  int row, chunk;             // of its first
  int left;                   // rows or columns that exist, in the direction that is not k
  int width;                  // elements of its chunks that exist, as far as `left` goes

  // `corner`: the first tile's first element. A tile spans less than 2^32 bytes.
  __device__ __forceinline__ TileCopy(const T* corner, i64 pitch, int left_, int thread)
      : tile(reinterpret_cast<const unsigned char*>(corner)),
        tile_step((K_DOWN ? ROWS * pitch : COLS) * static_cast<i64>(sizeof(T))),
        row(thread / CHUNKS),
        chunk(thread % CHUNKS),
        left(left_),
        width(PER_CHUNK) {
    int column = chunk * PER_CHUNK;
    if (K_DOWN && column + PER_CHUNK > left) {
      if (left % PER_CHUNK == 0) {
        column = left - PER_CHUNK;
      } else {
        width = column < left ? left - column : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int r = row + i * ROW_STEP;
      const u32 from_row = K_DOWN ? r : r < left ? r : left - 1;
      offsets[i] = (from_row * static_cast<u32>(pitch) + column) * static_cast<u32>(sizeof(T));
    }
  }

  // Whether the next tile, of which k_left of k exist, is made of whole chunks.
  __device__ __forceinline__ bool whole(int k_left) const {
    if (!ALIGNED) return false;
    return K_DOWN ? k_left >= ROWS && (left >= COLS || left % PER_CHUNK == 0) : k_left >= COLS;
  }

  // Part `part` of PARTS of the next tile, which is whole, to shared byte `to`.
  template <int PARTS>
  __device__ __forceinline__ void copy_whole(u32 to, int part) const {
    constexpr int each = (COUNT + PARTS - 1) / PARTS;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const int i = part * each + j;
      if (i >= COUNT || (!EVEN && row + i * ROW_STEP >= ROWS)) break;
      ptx::cp_async_16(to + Layout::at(row + i * ROW_STEP, chunk), tile + offsets[i]);
    }
  }

  // The next tile, of which k_left of k exist, to byte `to` of shared memory.
  __device__ __forceinline__ void copy_ragged(unsigned char* shared, u32 to, int k_left) const {
    const u32 base = ptx::shared_address(shared);
    const int along = k_left - chunk * PER_CHUNK;
    const int exist = K_DOWN ? width : along < 0 ? 0 : along < PER_CHUNK ? along : PER_CHUNK;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int r = row + i * ROW_STEP;
      if (!EVEN && r >= ROWS) break;
      const u32 at = to + Layout::at(r, chunk);
      const int count = !K_DOWN || r < k_left ? exist : 0;
      if constexpr (ALIGNED) {
        ptx::cp_async_16(base + at, tile + offsets[i], count * static_cast<int>(sizeof(T)));
      } else {
        const T* from = reinterpret_cast<const T*>(tile + offsets[i]);
#pragma unroll 1
        for (int e = 0; e < PER_CHUNK; ++e)
          reinterpret_cast<T*>(shared + at)[e] = e < count ? from[e] : T{};
      }
    }
  }

  // On to the next tile.
  __device__ __forceinline__ void advance() { tile += tile_step; }
};

// Both operands' tiles, of which one of A lies before one of B in a stage of shared memory.
template <class CopyA, class CopyB, int A_BYTES>
struct StageCopy {
  CopyA a;
  CopyB b;

  __device__ __forceinline__ bool whole(int k_left) const {
    return a.whole(k_left) && b.whole(k_left);
  }
  template <int PARTS>
  __device__ __forceinline__ void copy_whole(u32 to, int part) const {
    a.template copy_whole<PARTS>(to, part);
    b.template copy_whole<PARTS>(to + A_BYTES, part);
  }
  __device__ __forceinline__ void copy(unsigned char* shared, u32 to, int k_left) const {
    if (whole(k_left)) {
      copy_whole<1>(ptx::shared_address(shared) + to, 0);
    } else {
      a.copy_ragged(shared, to, k_left);
      b.copy_ragged(shared, to + A_BYTES, k_left);
    }
  }
  __device__ __forceinline__ void advance() {
    a.advance();
    b.advance();
  }
};

}  // namespace gemm_core
