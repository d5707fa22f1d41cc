// Tiles from global to shared memory through registers: the next tile can travel while this one is
// multiplied, and rows and columns may change places on the way.
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core {

// ROWS x COLS elements of T, by THREADS threads, VECTOR neighbours of a row at a time; S is what
// shared memory holds. ALIGNED: every source row starts at a multiple of 16 bytes.
template <class T, class S, int ROWS, int COLS, int THREADS, int VECTOR, bool ALIGNED>
struct TileRegisters {
  static constexpr int ACROSS = COLS / VECTOR, TOTAL = ROWS * ACROSS;
  static constexpr int COUNT = (TOTAL + THREADS - 1) / THREADS;
  static_assert(COLS % VECTOR == 0, "");
  T elements[COUNT][VECTOR];

  // Zeros where fewer than ROWS rows or COLS columns are left.
  __device__ __forceinline__ void fetch(const T* source, i64 pitch, int rows_left, int cols_left) {
    visit([&](int i, int row, int column) {
      const T* from = source + row * pitch + column;
      if (ALIGNED && row < rows_left && column + VECTOR <= cols_left) {
        struct alignas(VECTOR * sizeof(T)) Vector {
          T x[VECTOR];
        };
        const Vector vector = *reinterpret_cast<const Vector*>(from);
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) elements[i][e] = vector.x[e];
      } else {
#pragma unroll
        for (int e = 0; e < VECTOR; ++e)
          elements[i][e] = row < rows_left && column + e < cols_left ? from[e] : T{};
      }
    });
  }

  // To shared memory, rows `pitch` elements apart; TRANSPOSED: what were columns are rows there.
  template <bool TRANSPOSED>
  __device__ __forceinline__ void place(S* tile, int pitch) const {
    visit([&](int i, int row, int column) {
      if constexpr (TRANSPOSED) {
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) tile[(column + e) * pitch + row] = elements[i][e];
      } else {
        struct alignas(VECTOR * sizeof(S)) Vector {
          S x[VECTOR];
        } vector;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) vector.x[e] = elements[i][e];
        *reinterpret_cast<Vector*>(tile + row * pitch + column) = vector;
      }
    });
  }

 private:
  template <class Visit>
  static __device__ __forceinline__ void visit(Visit each) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int index = threadIdx.x + i * THREADS;
      if (TOTAL % THREADS != 0 && index >= TOTAL) break;
      each(i, index / ACROSS, index % ACROSS * VECTOR);
    }
  }
};

}  // namespace gemm_core
