// Stores every element of a tile to a dense C.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/numeric.cuh"

namespace gemm_core {

// C is (m, n) with row pitch `pitch`. VEC2_ALIGNED: every row of C starts at a multiple of two
// elements.
template <class T, bool VEC2_ALIGNED>
struct EpilogueDense {
  T* c;
  i64 pitch;
  int m, n;

  // Stores elements (row, column) and (row, column + 1); column is even.
  __device__ __forceinline__ void operator()(int row, int column, float v0, float v1) const {
    if (row >= m) return;
    struct alignas(2 * sizeof(T)) Pair {
      T first, second;
    };
    T* target = c + row * pitch + column;
    if (VEC2_ALIGNED && column + 1 < n) {
      *reinterpret_cast<Pair*>(target) = {Numeric<T>::from_float(v0), Numeric<T>::from_float(v1)};
      return;
    }
    if (column < n) target[0] = Numeric<T>::from_float(v0);
    if (column + 1 < n) target[1] = Numeric<T>::from_float(v1);
  }

  // Stores four neighbours; column is a multiple of four. At once where C allows it: halves of the 32
  // bytes that memory takes would else be written one after the other.
  __device__ __forceinline__ void operator()(int row, int column, float v0, float v1, float v2,
                                             float v3) const {
    struct alignas(4 * sizeof(T)) Four {
      T elements[4];
    };
    using N = Numeric<T>;
    T* target = c + row * pitch + column;
    if (row < m && column + 3 < n && reinterpret_cast<unsigned long long>(target) % sizeof(Four) == 0) {
      *reinterpret_cast<Four*>(target) = {N::from_float(v0), N::from_float(v1), N::from_float(v2),
                                          N::from_float(v3)};
      return;
    }
    (*this)(row, column, v0, v1);
    (*this)(row, column + 2, v2, v3);
  }

  __device__ __forceinline__ void operator()(int row, int column, float v) const {
    if (row < m && column < n) c[row * pitch + column] = Numeric<T>::from_float(v);
  }
};

// Passes every accumulator of an mma.sync main loop to the epilogue. The tile starts at (m0, n0).
template <class Mainloop, class Epilogue>
__device__ __forceinline__ void store_mma(const typename Mainloop::Accumulators& sums,
                                          const Epilogue& epilogue, int m0, int n0) {
#pragma unroll
  for (int i = 0; i < Mainloop::FRAGMENTS_M; ++i)
#pragma unroll
    for (int j = 0; j < Mainloop::FRAGMENTS_N; ++j)
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const fragment::Position at = fragment::mma_c(threadIdx.x % 32, e);
        epilogue(m0 + Mainloop::warp_row() + 16 * i + at.row,
                 n0 + Mainloop::warp_column() + 8 * j + at.column, sums[i][j][e],
                 sums[i][j][e + 1]);
      }
}

// The same for a WMMA main loop, whose m8n32 fragments pair rows instead of columns.
template <class Mainloop, int M, int N, class Epilogue>
__device__ __forceinline__ void store_wmma(const typename Mainloop::Accumulators& sums,
                                           const Epilogue& epilogue, int m0, int n0) {
#pragma unroll
  for (int i = 0; i < Mainloop::FRAGMENTS_M; ++i)
#pragma unroll
    for (int j = 0; j < Mainloop::FRAGMENTS_N; ++j)
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const fragment::Position at = fragment::wmma_accumulator<M, N>(threadIdx.x % 32, e);
        const int row = m0 + Mainloop::warp_row() + M * i + at.row;
        const int column = n0 + Mainloop::warp_column() + N * j + at.column;
        const float v0 = sum_of(sums[i][j], e), v1 = sum_of(sums[i][j], e + 1);
        if constexpr (M == 8) {
          epilogue(row, column, v0);
          epilogue(row + 1, column, v1);
        } else {
          epilogue(row, column, v0, v1);
        }
      }
}

// The same for a main loop on CUDA cores, which passes NEIGHBOURS columns of a row at a time.
template <class Mainloop, int NEIGHBOURS = 2, class Epilogue>
__device__ __forceinline__ void store_simt(const typename Mainloop::Accumulators& sums,
                                           const Epilogue& epilogue, int m0, int n0) {
#pragma unroll
  for (int i = 0; i < Mainloop::THREAD_M; ++i)
#pragma unroll
    for (int j = 0; j < Mainloop::THREAD_N; j += NEIGHBOURS) {
      const int row = m0 + Mainloop::row_of(i), column = n0 + Mainloop::column_of(j);
      if constexpr (NEIGHBOURS == 4) {
        epilogue(row, column, sum_of(sums[i], j), sum_of(sums[i], j + 1), sum_of(sums[i], j + 2),
                 sum_of(sums[i], j + 3));
      } else if constexpr (Mainloop::THREAD_N == 1) {
        epilogue(row, column, sum_of(sums[i], j));
      } else {
        epilogue(row, column, sum_of(sums[i], j), sum_of(sums[i], j + 1));
      }
    }
}

// The same for a main loop on wgmma, by the warpgroups that have sums.
template <class Mainloop, class Epilogue>
__device__ __forceinline__ void store_wgmma(const typename Mainloop::Accumulators& sums,
                                            const Epilogue& epilogue, int m0, int n0) {
#pragma unroll
  for (int i = 0; i < Mainloop::BN / 2; i += 2) {
    const fragment::Position at = fragment::wgmma_d(threadIdx.x % 128, i);
    epilogue(m0 + Mainloop::first_row() + at.row, n0 + at.column, sums[i], sums[i + 1]);
  }
}

}  // namespace gemm_core
