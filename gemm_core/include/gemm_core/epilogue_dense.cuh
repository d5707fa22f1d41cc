// Every element of the tile to a dense C.
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core {

// C is (m, n), row pitch `pitch`. PAIRED: rows of C start at multiples of two elements.
template <class T, bool PAIRED>
struct EpilogueDense {
  T* c;
  i64 pitch;
  int m, n;

  // Elements (row, column) and (row, column + 1); column is even.
  __device__ __forceinline__ void operator()(int row, int column, float v0, float v1) const {
    if (row >= m) return;
    struct alignas(2 * sizeof(T)) Pair {
      T first, second;
    };
    T* at = c + row * pitch + column;
    if (PAIRED && column + 1 < n) {
      *reinterpret_cast<Pair*>(at) = {Numeric<T>::from_float(v0), Numeric<T>::from_float(v1)};
      return;
    }
    if (column < n) at[0] = Numeric<T>::from_float(v0);
    if (column + 1 < n) at[1] = Numeric<T>::from_float(v1);
  }
};

// Hands every accumulator of the main loop's tile at (m0, n0) to the epilogue.
template <class Mainloop, class Epilogue>
__device__ __forceinline__ void store_mma(const typename Mainloop::Accumulators& acc,
                                          const Epilogue& epilogue, int m0, int n0) {
  const int lane = threadIdx.x % 32;
  const int row0 = m0 + Mainloop::warp_row() + lane / 4;
  const int column0 = n0 + Mainloop::warp_column() + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < Mainloop::MI; ++i)
#pragma unroll
    for (int j = 0; j < Mainloop::NI; ++j) {
      epilogue(row0 + 16 * i, column0 + 8 * j, acc[i][j][0], acc[i][j][1]);
      epilogue(row0 + 16 * i + 8, column0 + 8 * j, acc[i][j][2], acc[i][j][3]);
    }
}

}  // namespace gemm_core
