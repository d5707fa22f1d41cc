// How one operand of a CUDA-core main loop comes to shared memory: through registers or by cp.async.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/tile_registers.cuh"

namespace gemm_core {

// Both ways: begin() sets out for the next tile, finish() has this thread's share of it in `tile`,
// rows PITCH elements apart, TRANSPOSED or not. ROWS x COLS elements of T as they are stored, next
// tiles `step` elements further on. Whatever the alignment, what is beyond rows_left and cols_left
// becomes zeros.
template <class T, int ROWS, int COLS, int PITCH, int THREADS, int VECTOR, bool TRANSPOSED,
          bool ALIGNED>
struct OperandThroughRegisters {
  TileRegisters<T, T, ROWS, COLS, THREADS, VECTOR, ALIGNED> registers;
  const T* source;
  i64 pitch, step;

  __device__ __forceinline__ OperandThroughRegisters(const T* corner, i64 pitch_, i64 step_)
      : source(corner), pitch(pitch_), step(step_) {}

  __device__ __forceinline__ void begin(T*, int rows_left, int cols_left) {
    registers.fetch(source, pitch, rows_left, cols_left);
    source += step;
  }
  __device__ __forceinline__ void finish(T* tile) const {
    registers.template place<TRANSPOSED>(tile, PITCH);
  }
};

// Whether cp.async can bring it: no fewer than 4 bytes at a time, and single elements where rows and
// columns change places or nothing is aligned.
template <class T, bool TRANSPOSED, bool ALIGNED>
constexpr bool can_be_async = sizeof(T) == 4 || (!TRANSPOSED && ALIGNED);

template <class T, int ROWS, int COLS, int PITCH, int THREADS, bool TRANSPOSED, bool ALIGNED>
struct OperandAsync {
  static constexpr int WIDTH = TRANSPOSED || !ALIGNED ? 1 : 16 / sizeof(T);
  static constexpr int ACROSS = COLS / WIDTH, ROW_STEP = THREADS / ACROSS;
  static constexpr int COUNT = ROWS / ROW_STEP;
  static_assert(THREADS % ACROSS == 0 && ROWS % ROW_STEP == 0, "equal shares");

  const T* source;  // of this thread's first copy
  i64 row_step, step;
  int row, column;  // of that copy in the tile

  __device__ __forceinline__ OperandAsync(const T* corner, i64 pitch, i64 step_)
      : row_step(ROW_STEP * pitch),
        step(step_),
        row(threadIdx.x / ACROSS),
        column(threadIdx.x % ACROSS * WIDTH) {
    source = corner + row * pitch + column;
  }

  __device__ __forceinline__ void begin(T* tile, int rows_left, int cols_left) {
    const u32 target =
        ptx::shared_address(tile + (TRANSPOSED ? column * PITCH + row : row * PITCH + column));
    constexpr int apart = ROW_STEP * (TRANSPOSED ? 1 : PITCH) * sizeof(T);
    const T* from = source;
    if (rows_left >= ROWS && cols_left >= COLS) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i, from += row_step) {
        if constexpr (WIDTH == 1) {
          ptx::cp_async_4(target + i * apart, from);
        } else {
          ptx::cp_async_16(target + i * apart, from);
        }
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < COUNT; ++i, from += row_step) {
        const int left = row + i * ROW_STEP < rows_left ? cols_left - column : 0;
        if constexpr (WIDTH == 1) {
          ptx::cp_async_4(target + i * apart, from, left > 0);
        } else {
          const int exist = left < 0 ? 0 : left < WIDTH ? left : WIDTH;
          ptx::cp_async_16(target + i * apart, from, exist * static_cast<int>(sizeof(T)));
        }
      }
    }
    source += step;
  }

  __device__ __forceinline__ void finish(T*) const {
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
  }
};

}  // namespace gemm_core
