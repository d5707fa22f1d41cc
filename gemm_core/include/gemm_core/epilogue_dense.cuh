// Every element of the tile to a dense C.
#pragma once

#include "gemm_core/fragment.cuh"
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

  __device__ __forceinline__ void operator()(int row, int column, float v) const {
    if (row < m && column < n) c[row * pitch + column] = Numeric<T>::from_float(v);
  }
};

// Hands every accumulator of an mma.sync main loop's tile at (m0, n0) to the epilogue.
template <class Mainloop, class Epilogue>
__device__ __forceinline__ void store_mma(const typename Mainloop::Accumulators& acc,
                                          const Epilogue& epilogue, int m0, int n0) {
#pragma unroll
  for (int i = 0; i < Mainloop::MI; ++i)
#pragma unroll
    for (int j = 0; j < Mainloop::NI; ++j)
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const fragment::Position at = fragment::mma_c(threadIdx.x % 32, e);
        epilogue(m0 + Mainloop::warp_row() + 16 * i + at.row,
                 n0 + Mainloop::warp_column() + 8 * j + at.column, acc[i][j][e], acc[i][j][e + 1]);
      }
}

// The same for WMMA, whose m8n32 fragments pair rows instead of columns.
template <class Mainloop, int M, int N, class Epilogue>
__device__ __forceinline__ void store_wmma(const typename Mainloop::Accumulators& acc,
                                           const Epilogue& epilogue, int m0, int n0) {
#pragma unroll
  for (int i = 0; i < Mainloop::FM; ++i)
#pragma unroll
    for (int j = 0; j < Mainloop::FN; ++j)
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const fragment::Position at = fragment::wmma_accumulator<M, N>(threadIdx.x % 32, e);
        const int row = m0 + Mainloop::warp_row() + M * i + at.row;
        const int column = n0 + Mainloop::warp_column() + N * j + at.column;
        const float v0 = sum_of(acc[i][j], e), v1 = sum_of(acc[i][j], e + 1);
        if constexpr (M == 8) {
          epilogue(row, column, v0);
          epilogue(row + 1, column, v1);
        } else {
          epilogue(row, column, v0, v1);
        }
      }
}

}  // namespace gemm_core
