// Main loop on CUDA cores: tiles in shared memory, and THREAD_M x THREAD_N outputs per thread in
// registers. Floats by fused multiply-adds, halves in pairs. Any m, n, k.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/operand_tile.cuh"
#include "gemm_core/ptx/half2.cuh"

namespace gemm_core {

// Computes one BM x BN tile of A B by WARPS_M x WARPS_N warps of 4 x 8 threads. Both tiles are
// stored in shared memory with k outermost, so A is transposed on the way (and B, if it is stored
// as (n, k) rows). SPREAD: a thread's rows and columns are groups of four, interleaved with other
// threads' groups, so that the threads of a warp read neighbouring words without bank conflicts.
// PAD: elements added to each row of a transposed tile, which avoid bank conflicts of the
// transposing stores. VECTOR: elements of one global memory access. BUFFERS 2: the next tile is
// copied while this one is multiplied, with one barrier per tile. ASYNC: copies by cp.async, where
// the elements allow it.
template <class T_, int BM, int BN, int BK, int WARPS_M, int WARPS_N, int THREAD_M_, int THREAD_N_,
          int BUFFERS, int VECTOR, bool ASYNC, int PAD, bool SPREAD, bool B_ROWS_ARE_N,
          bool ALIGNED_A, bool ALIGNED_B>
struct MainloopSimt {
  using T = T_;
  static constexpr int THREAD_M = THREAD_M_, THREAD_N = THREAD_N_, THREADS = 32 * WARPS_M * WARPS_N;
  static constexpr bool HALVES = sizeof(T) == 2;
  static constexpr int PITCH_A = BM + PAD, PITCH_B = BN + (B_ROWS_ARE_N ? PAD : 0);
  static constexpr int STAGE = BK * (PITCH_A + PITCH_B);  // elements
  static constexpr int SHARED_BYTES = BUFFERS * STAGE * sizeof(T);
  // Neighbouring rows and columns that a thread reads at once.
  static constexpr int GROUP_M = THREAD_M < 4 ? THREAD_M : 4, GROUP_N = THREAD_N < 4 ? THREAD_N : 4;
  static_assert(BM == WARPS_M * 4 * THREAD_M && BN == WARPS_N * 8 * THREAD_N,
                "a warp is 4 x 8 threads");
  static_assert(THREAD_M % GROUP_M == 0 && THREAD_N % GROUP_N == 0, "whole groups");
  static_assert(PAD % 4 == 0 && BUFFERS <= 2, "");
  static_assert(!HALVES || THREAD_N % 2 == 0, "halves are multiplied in pairs of columns");

  // THREAD_M x THREAD_N sums: floats, or pairs of halves.
  using Accumulators = typename Select<HALVES, u32[THREAD_M][(THREAD_N + 1) / 2],
                                       float[THREAD_M][THREAD_N]>::type;

  // The row in the block's tile of row i of this thread's accumulators; column_of likewise.
  static __device__ __forceinline__ int row_of(int i) {
    const int warp = threadIdx.x / 32 / WARPS_N, lane = threadIdx.x % 32 / 8;
    return warp * 4 * THREAD_M +
           (SPREAD ? i / GROUP_M * 4 * GROUP_M + lane * GROUP_M + i % GROUP_M : lane * THREAD_M + i);
  }
  static __device__ __forceinline__ int column_of(int j) {
    const int warp = threadIdx.x / 32 % WARPS_N, lane = threadIdx.x % 8;
    return warp * 8 * THREAD_N +
           (SPREAD ? j / GROUP_N * 8 * GROUP_N + lane * GROUP_N + j % GROUP_N : lane * THREAD_N + j);
  }

  // sums += A[m0 : m0 + BM] B[:, n0 : n0 + BN], by all threads of the block.
  static __device__ __forceinline__ void run(Accumulators& sums, T* shared, const T* a, i64 pitch_a,
                                             const T* b, i64 pitch_b, int m0, int n0, int m, int n,
                                             int k) {
    TileA tile_a(a + m0 * pitch_a, pitch_a, BK);
    TileB tile_b(b + (B_ROWS_ARE_N ? n0 * pitch_b : n0), pitch_b, B_ROWS_ARE_N ? BK : BK * pitch_b);
    auto start_copy = [&](T* stage, int k_left) {
      tile_a.start_copy(stage, m - m0, k_left);
      tile_b.start_copy(stage + BK * PITCH_A, B_ROWS_ARE_N ? n - n0 : k_left,
                        B_ROWS_ARE_N ? k_left : n - n0);
    };
    auto finish_copy = [&](T* stage) {
      tile_a.finish_copy(stage);
      tile_b.finish_copy(stage + BK * PITCH_A);
    };

    start_copy(shared, k);
    finish_copy(shared);
    __syncthreads();
    for (int k_left = k, buffer = 0; k_left > 0; k_left -= BK) {
      const bool has_next = k_left > BK;
      T* current = shared + buffer * STAGE;
      buffer = BUFFERS - 1 - buffer;
      T* next = shared + buffer * STAGE;
      if (has_next) start_copy(next, k_left - BK);
      multiply(sums, current);
      if constexpr (BUFFERS == 1) __syncthreads();  // every warp has read the only buffer
      if (has_next) finish_copy(next);
      __syncthreads();
    }
  }

 private:
  static_assert(!ASYNC || BUFFERS == 2, "cp.async writes one buffer while the other is read");
  template <int ROWS, int COLS, int PITCH, bool TRANSPOSED, bool ALIGNED>
  using Tile = typename Select<
      ASYNC && can_be_async<T, TRANSPOSED, ALIGNED>,
      OperandAsync<T, ROWS, COLS, PITCH, THREADS, TRANSPOSED, ALIGNED>,
      OperandThroughRegisters<T, ROWS, COLS, PITCH, THREADS, VECTOR, TRANSPOSED, ALIGNED>>::type;
  using TileA = Tile<BM, BK, PITCH_A, true, ALIGNED_A>;
  using TileB =
      Tile<B_ROWS_ARE_N ? BN : BK, B_ROWS_ARE_N ? BK : BN, PITCH_B, B_ROWS_ARE_N, ALIGNED_B>;

  // Reads GROUP elements of T in one access.
  template <int GROUP>
  static __device__ __forceinline__ void read(T* target, const T* source) {
    struct alignas(GROUP * sizeof(T)) Vector {
      T x[GROUP];
    };
    const Vector vector = *reinterpret_cast<const Vector*>(source);
#pragma unroll
    for (int e = 0; e < GROUP; ++e) target[e] = vector.x[e];
  }

  static __device__ __forceinline__ void multiply(Accumulators& sums, const T* stage) {
    const T* a = stage;
    const T* b = stage + BK * PITCH_A;
    constexpr int unroll_k = THREAD_M * THREAD_N > 64 && !ASYNC ? 4 : BK;  // more would spill registers
#pragma unroll unroll_k
    for (int k = 0; k < BK; ++k) {
      T row[THREAD_M], column[THREAD_N];
#pragma unroll
      for (int i = 0; i < THREAD_M; i += GROUP_M) read<GROUP_M>(row + i, a + k * PITCH_A + row_of(i));
#pragma unroll
      for (int j = 0; j < THREAD_N; j += GROUP_N)
        read<GROUP_N>(column + j, b + k * PITCH_B + column_of(j));
      // Down one column, up the next: two consecutive operations share an operand, which saves a
      // read of the register file. The banks of the register file, not the arithmetic, limit this
      // loop.
#pragma unroll
      for (int j = 0; j < THREAD_N; j += HALVES ? 2 : 1)
#pragma unroll
        for (int step = 0; step < THREAD_M; ++step) {
          const int i = j / (HALVES ? 2 : 1) % 2 == 0 ? step : THREAD_M - 1 - step;
          if constexpr (HALVES) {
            const u32 row_pair = row[i].bits | static_cast<u32>(row[i].bits) << 16;
            const u32 column_pair = column[j].bits | static_cast<u32>(column[j + 1].bits) << 16;
            sums[i][j / 2] = ptx::fma_f16x2(row_pair, column_pair, sums[i][j / 2]);
          } else {
            sums[i][j] = fmaf(row[i], column[j], sums[i][j]);
          }
        }
    }
  }
};

}  // namespace gemm_core
