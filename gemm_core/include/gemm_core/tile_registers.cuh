// Copies tiles from global to shared memory through registers: the loads of the next tile are in
// flight while this one is multiplied, and a tile can be transposed on the way.
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core {

// ROWS x COLS elements of T, loaded by THREADS threads, VECTOR neighbours of a row at a time. S is
// the element type in shared memory. ALIGNED: every source row starts at a multiple of 16 bytes.
template <class T, class S, int ROWS, int COLS, int THREADS, int VECTOR, bool ALIGNED>
struct TileRegisters {
  static constexpr int ROW_VECTORS = COLS / VECTOR, VECTORS = ROWS * ROW_VECTORS;
  static constexpr int VECTORS_PER_THREAD = (VECTORS + THREADS - 1) / THREADS;
  static constexpr int ROW_STEP = THREADS / ROW_VECTORS;
  static_assert(COLS % VECTOR == 0 && THREADS % ROW_VECTORS == 0, "a thread loads one column");
  T elements[VECTORS_PER_THREAD][VECTOR];

  // Loads a tile from global memory; zeros beyond rows_left rows and cols_left columns.
  __device__ __forceinline__ void load(const T* source, i64 pitch, int rows_left, int cols_left) {
    // Each address follows from the one before: otherwise the compiler keeps the products of rows and
    // pitch, in two registers each. Loads of single elements take more registers that way.
    constexpr bool CHAINED = ALIGNED && VECTORS_PER_THREAD > 1;
    const T* next = source;
    for_each_vector([&](int i, int row, int column) {
      const T* from = CHAINED && i > 0 ? next : source + row * pitch + column;
      if constexpr (CHAINED) next = from + ROW_STEP * pitch;
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

  // Stores the tile to shared memory with rows `pitch` elements apart, transposed if TRANSPOSED.
  template <bool TRANSPOSED>
  __device__ __forceinline__ void store(S* tile, int pitch) const {
    for_each_vector([&](int i, int row, int column) {
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
  // Calls visit(i, row, column) for vector i of this thread, which starts at (row, column).
  template <class Visit>
  static __device__ __forceinline__ void for_each_vector(Visit visit) {
#pragma unroll
    for (int i = 0; i < VECTORS_PER_THREAD; ++i) {
      const int index = threadIdx.x + i * THREADS;
      if (VECTORS % THREADS != 0 && index >= VECTORS) break;
      visit(i, index / ROW_VECTORS, index % ROW_VECTORS * VECTOR);
    }
  }
};

}  // namespace gemm_core
