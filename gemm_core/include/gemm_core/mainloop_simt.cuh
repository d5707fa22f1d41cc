// Main loop on CUDA cores: float tiles in shared memory, TM x TN outputs a thread in registers.
// Any m, n, k.
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core {

// One BM x BN tile of A B by WARPS_M x WARPS_N warps of 4 x 8 threads. Both tiles lie in shared memory
// with k outermost, so A is transposed on the way (and B, if it is stored as (n, k) rows). SPREAD: a
// thread's rows and columns are groups of four, spread over the warp's tile, so that the threads of a
// warp read neighbouring 16-byte words: no bank conflicts. PAD: floats added to every row of A's
// tile, against conflicts of the transposing stores. BUFFERS 2: the next tile travels through
// registers while this one is multiplied, with one barrier a tile.
template <class T, int BM, int BN, int BK, int WARPS_M, int WARPS_N, int TM_, int TN_, int BUFFERS,
          int PAD, bool SPREAD, bool B_ROWS_ARE_N, bool ALIGNED_A, bool ALIGNED_B>
struct MainloopSimt {
  static constexpr int TM = TM_, TN = TN_, THREADS = 32 * WARPS_M * WARPS_N;
  static constexpr int PITCH_A = BM + PAD, PITCH_B = BN + (B_ROWS_ARE_N ? PAD : 0);
  static constexpr int STAGE = BK * (PITCH_A + PITCH_B);
  static_assert(BM == WARPS_M * 4 * TM && BN == WARPS_N * 8 * TN, "a warp is 4 x 8 threads");
  static_assert(TM % 4 == 0 && TN % 4 == 0 && PAD % 4 == 0 && BUFFERS <= 2, "words of 16 bytes");

  using Accumulators = float[TM][TN];

  // Row of the block's tile that element i of this thread's accumulators holds.
  static __device__ __forceinline__ int row_of(int i) {
    const int warp = threadIdx.x / 32 / WARPS_N, lane = threadIdx.x % 32 / 8;
    return warp * 4 * TM + (SPREAD ? i / 4 * 16 + lane * 4 + i % 4 : lane * TM + i);
  }
  static __device__ __forceinline__ int column_of(int j) {
    const int warp = threadIdx.x / 32 % WARPS_N, lane = threadIdx.x % 8;
    return warp * 8 * TN + (SPREAD ? j / 4 * 32 + lane * 4 + j % 4 : lane * TN + j);
  }

  static __device__ __forceinline__ void run(Accumulators& acc, float* shared, const T* a,
                                             i64 pitch_a, const T* b, i64 pitch_b, int m0, int n0,
                                             int m, int n, int k) {
    LoadA next_a;
    LoadB next_b;
    auto fetch = [&](int k0) {
      next_a.fetch(a + m0 * pitch_a + k0, pitch_a, m - m0, k - k0);
      if constexpr (B_ROWS_ARE_N) {
        next_b.fetch(b + n0 * pitch_b + k0, pitch_b, n - n0, k - k0);
      } else {
        next_b.fetch(b + k0 * pitch_b + n0, pitch_b, k - k0, n - n0);
      }
    };
    auto place = [&](float* stage) {
      next_a.template place<true>(stage, PITCH_A);
      next_b.template place<B_ROWS_ARE_N>(stage + BK * PITCH_A, PITCH_B);
    };

    fetch(0);
    place(shared);
    __syncthreads();
    for (int k0 = 0, tile = 0; k0 < k; k0 += BK, ++tile) {
      const bool more = k0 + BK < k;
      if (more) fetch(k0 + BK);
      multiply(acc, shared + tile % BUFFERS * STAGE);
      if (BUFFERS == 1) __syncthreads();  // everyone has read the only buffer
      if (more) place(shared + (tile + 1) % BUFFERS * STAGE);
      __syncthreads();
    }
  }

 private:
  // ROWS x COLS elements between global memory and this thread's registers, four of a row at a time.
  template <int ROWS, int COLS, bool ALIGNED>
  struct Load {
    static constexpr int QUADS = COLS / 4, EACH = (ROWS * QUADS + THREADS - 1) / THREADS;
    float quads[EACH][4];

    __device__ __forceinline__ void fetch(const T* source, i64 pitch, int rows_left,
                                          int cols_left) {
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const int index = threadIdx.x + i * THREADS, row = index / QUADS, column = index % QUADS * 4;
        if (ROWS * QUADS % THREADS != 0 && index >= ROWS * QUADS) break;
        const T* from = source + row * pitch + column;
        if (ALIGNED && row < rows_left && column + 3 < cols_left) {
          struct alignas(4 * sizeof(T)) Quad {
            T x[4];
          };
          const Quad quad = *reinterpret_cast<const Quad*>(from);
#pragma unroll
          for (int e = 0; e < 4; ++e) quads[i][e] = Numeric<T>::to_float(quad.x[e]);
        } else {
#pragma unroll
          for (int e = 0; e < 4; ++e)
            quads[i][e] =
                row < rows_left && column + e < cols_left ? Numeric<T>::to_float(from[e]) : 0.f;
        }
      }
    }

    // To shared memory as it is, or with rows and columns exchanged.
    template <bool TRANSPOSED>
    __device__ __forceinline__ void place(float* tile, int pitch) const {
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const int index = threadIdx.x + i * THREADS, row = index / QUADS, column = index % QUADS * 4;
        if (ROWS * QUADS % THREADS != 0 && index >= ROWS * QUADS) break;
        if constexpr (TRANSPOSED) {
#pragma unroll
          for (int e = 0; e < 4; ++e) tile[(column + e) * pitch + row] = quads[i][e];
        } else {
          *reinterpret_cast<float4*>(tile + row * pitch + column) =
              make_float4(quads[i][0], quads[i][1], quads[i][2], quads[i][3]);
        }
      }
    }
  };
  using LoadA = Load<BM, BK, ALIGNED_A>;
  using LoadB = Load<B_ROWS_ARE_N ? BN : BK, B_ROWS_ARE_N ? BK : BN, ALIGNED_B>;

  static __device__ __forceinline__ void multiply(Accumulators& acc, const float* stage) {
    const float* a = stage;
    const float* b = stage + BK * PITCH_A;
    constexpr int unroll = TM * TN > 64 ? 4 : 8;  // more would spill registers
#pragma unroll unroll
    for (int kk = 0; kk < BK; ++kk) {
      float row[TM], column[TN];
#pragma unroll
      for (int i = 0; i < TM; i += 4)
        *reinterpret_cast<float4*>(row + i) =
            *reinterpret_cast<const float4*>(a + kk * PITCH_A + row_of(i));
#pragma unroll
      for (int j = 0; j < TN; j += 4)
        *reinterpret_cast<float4*>(column + j) =
            *reinterpret_cast<const float4*>(b + kk * PITCH_B + column_of(j));
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) acc[i][j] = fmaf(row[i], column[j], acc[i][j]);
    }
  }
};

}  // namespace gemm_core
