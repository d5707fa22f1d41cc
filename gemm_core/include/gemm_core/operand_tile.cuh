// Copies the tiles of one operand of a CUDA-core main loop to shared memory, through registers or
// by cp.async.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/tile_registers.cuh"

namespace gemm_core {

// Both copies have the same interface: start_copy() issues the loads of the next tile, and after
// finish_copy() this thread's share of it is in `tile`, with rows PITCH elements apart, transposed
// if TRANSPOSED. A tile is ROWS x COLS elements of T as they are stored; the next tile is
// `tile_step` elements further on. Elements beyond rows_left and cols_left become zeros, whatever
// the alignment.
template <class T, int ROWS, int COLS, int PITCH, int THREADS, int VECTOR, bool TRANSPOSED,
          bool ALIGNED>
struct OperandThroughRegisters {
  TileRegisters<T, T, ROWS, COLS, THREADS, VECTOR, ALIGNED> registers;
  const T* source;
  i64 pitch, tile_step;

  __device__ __forceinline__ OperandThroughRegisters(const T* first_tile, i64 pitch_, i64 tile_step_)
      : source(first_tile), pitch(pitch_), tile_step(tile_step_) {}

  __device__ __forceinline__ void start_copy(T*, int rows_left, int cols_left) {
    registers.load(source, pitch, rows_left, cols_left);
    source += tile_step;
  }
  __device__ __forceinline__ void finish_copy(T* tile) const {
    registers.template store<TRANSPOSED>(tile, PITCH);
  }
};

// Whether cp.async can copy the operand. It copies at least 4 bytes, and a transposed or unaligned
// tile needs copies of single elements.
template <class T, bool TRANSPOSED, bool ALIGNED>
constexpr bool can_be_async = sizeof(T) == 4 || (!TRANSPOSED && ALIGNED);

template <class T, int ROWS, int COLS, int PITCH, int THREADS, bool TRANSPOSED, bool ALIGNED>
struct OperandAsync {
  static constexpr int VECTOR = TRANSPOSED || !ALIGNED ? 1 : 16 / sizeof(T);
  static constexpr int ROW_VECTORS = COLS / VECTOR, ROW_STEP = THREADS / ROW_VECTORS;
  static constexpr int VECTORS_PER_THREAD = ROWS / ROW_STEP;
  static_assert(THREADS % ROW_VECTORS == 0 && ROWS % ROW_STEP == 0, "equal shares");

  const T* source;  // of this thread's first vector
  i64 row_step, tile_step;
  int row, column;  // of that vector in the tile

  __device__ __forceinline__ OperandAsync(const T* first_tile, i64 pitch, i64 tile_step_)
      : row_step(ROW_STEP * pitch),
        tile_step(tile_step_),
        row(threadIdx.x / ROW_VECTORS),
        column(threadIdx.x % ROW_VECTORS * VECTOR) {
    source = first_tile + row * pitch + column;
  }

  __device__ __forceinline__ void start_copy(T* tile, int rows_left, int cols_left) {
    const u32 target =
        ptx::shared_address(tile + (TRANSPOSED ? column * PITCH + row : row * PITCH + column));
    constexpr int target_step = ROW_STEP * (TRANSPOSED ? 1 : PITCH) * sizeof(T);
    const T* from = source;
    if (rows_left >= ROWS && cols_left >= COLS) {
#pragma unroll
      for (int i = 0; i < VECTORS_PER_THREAD; ++i, from += row_step) {
        if constexpr (VECTOR == 1) {
          ptx::cp_async_4(target + i * target_step, from);
        } else {
          ptx::cp_async_16(target + i * target_step, from);
        }
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < VECTORS_PER_THREAD; ++i, from += row_step) {
        const int left = row + i * ROW_STEP < rows_left ? cols_left - column : 0;
        if constexpr (VECTOR == 1) {
          ptx::cp_async_4(target + i * target_step, from, left > 0);
        } else {
          const int elements = left < 0 ? 0 : left < VECTOR ? left : VECTOR;
          ptx::cp_async_16(target + i * target_step, from, elements * static_cast<int>(sizeof(T)));
        }
      }
    }
    source += tile_step;
  }

  __device__ __forceinline__ void finish_copy(T*) const {
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
  }
};

}  // namespace gemm_core
