// Tiles from global to shared memory, ragged edges filled with zeros.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/swizzle.cuh"

namespace gemm_core {

// Copies tiles one after the other: ROWS x COLS elements each, by THREADS threads, into swizzled
// shared memory. ALIGNED: every source row starts at a multiple of 16 bytes; then a copy is
// asynchronous (commit and wait are the caller's), else it is made of single elements.
//
// Each thread owns one column of chunks and every ROW_STEP-th row, and walks down it with one
// addition a copy: what copying costs beside the copies is what the tensor cores wait for.
//
//   begin(...) once a tile, copy<PARTS>(part) for every part in order, end(step).
template <class T, int ROWS, int COLS, int THREADS, bool ALIGNED>
struct TileCopy {
  static constexpr int PER_CHUNK = 16 / sizeof(T), CHUNKS = COLS / PER_CHUNK;
  static constexpr int ROW_STEP = THREADS / CHUNKS, COUNT = ROWS / ROW_STEP;
  static_assert(THREADS % CHUNKS == 0 && ROWS % ROW_STEP == 0, "every thread copies as many chunks");
  static_assert(ROW_STEP % Swizzle<CHUNKS>::period == 0, "one swizzle for all rows of a thread");

  const T* source;  // of this thread's next copy
  i64 row_step;     // elements between its rows
  int first_row, column;
  u32 target;  // byte offset of its first chunk in a tile
  int exist;   // elements of its chunks that exist in this tile
  int rows;    // how many of its rows exist in this tile
  u32 to;      // byte offset in shared memory of its first chunk of this tile

  __device__ __forceinline__ TileCopy(const T* corner, i64 pitch)
      : row_step(ROW_STEP * pitch), first_row(threadIdx.x / CHUNKS) {
    const int chunk = threadIdx.x % CHUNKS;
    column = chunk * PER_CHUNK;
    source = corner + first_row * pitch + column;
    target = Swizzle<CHUNKS>::at(first_row, chunk);
  }

  // A tile at byte `tile` of shared memory, of which rows_left x cols_left elements exist.
  __device__ __forceinline__ void begin(u32 tile, int rows_left, int cols_left) {
    to = tile + target;
    const int left = cols_left - column;
    exist = left < 0 ? 0 : left < PER_CHUNK ? left : PER_CHUNK;
    const int below = rows_left - first_row + ROW_STEP - 1;
    rows = below < 0 ? 0 : below / ROW_STEP;
  }

  template <int PARTS>
  __device__ __forceinline__ void copy(unsigned char* shared, u32 shared_base, int part) {
    constexpr int each = (COUNT + PARTS - 1) / PARTS;
    const bool whole = rows >= COUNT && exist == PER_CHUNK;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const int i = part * each + j;
      if (i >= COUNT) break;
      const u32 at = to + i * ROW_STEP * COLS * static_cast<u32>(sizeof(T));
      if constexpr (ALIGNED) {
        if (whole) {
          ptx::cp_async_16(shared_base + at, source);
        } else {
          const int count = i < rows ? exist : 0;
          ptx::cp_async_16(shared_base + at, source, count * static_cast<int>(sizeof(T)));
        }
      } else {
        T* chunk = reinterpret_cast<T*>(shared + at);
#pragma unroll
        for (int e = 0; e < PER_CHUNK; ++e) chunk[e] = i < rows && e < exist ? source[e] : T{};
      }
      source += row_step;
    }
  }

  // On to the next tile, `step` elements from this one.
  __device__ __forceinline__ void end(i64 step) { source += step - COUNT * row_step; }
};

}  // namespace gemm_core
