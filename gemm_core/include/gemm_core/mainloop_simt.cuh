// Main loop on CUDA cores: tiles in shared memory, TM x TN outputs a thread in registers; floats by
// fused multiply-adds, or halves by pairs. Any m, n, k.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/operand_tile.cuh"
#include "gemm_core/ptx/half2.cuh"

namespace gemm_core {

// One BM x BN tile of A B by WARPS_M x WARPS_N warps of 4 x 8 threads. Both tiles lie in shared memory
// with k outermost, so A is transposed on the way (and B, if it is stored as (n, k) rows). SPREAD: a
// thread's rows and columns are groups of four, spread over the warp's tile, so that the threads of a
// warp read neighbouring words: no bank conflicts. PAD: elements added to every row of a transposed
// tile, against conflicts of the transposing stores. VECTOR: elements of one access to global
// memory. BUFFERS 2: the next tile travels while this one is multiplied, with one barrier a tile;
// ASYNC: by cp.async, where the elements allow it.
template <class T_, int BM, int BN, int BK, int WARPS_M, int WARPS_N, int TM_, int TN_, int BUFFERS,
          int VECTOR, bool ASYNC, int PAD, bool SPREAD, bool B_ROWS_ARE_N, bool ALIGNED_A,
          bool ALIGNED_B>
struct MainloopSimt {
  using T = T_;
  static constexpr int TM = TM_, TN = TN_, THREADS = 32 * WARPS_M * WARPS_N;
  static constexpr bool HALVES = sizeof(T) == 2;
  static constexpr int PITCH_A = BM + PAD, PITCH_B = BN + (B_ROWS_ARE_N ? PAD : 0);
  static constexpr int STAGE = BK * (PITCH_A + PITCH_B);
  // Rows or columns that a thread reads at once.
  static constexpr int GROUP_M = TM < 4 ? TM : 4, GROUP_N = TN < 4 ? TN : 4;
  static_assert(BM == WARPS_M * 4 * TM && BN == WARPS_N * 8 * TN, "a warp is 4 x 8 threads");
  static_assert(TM % GROUP_M == 0 && TN % GROUP_N == 0 && PAD % 4 == 0 && BUFFERS <= 2, "");
  static_assert(!HALVES || TN % 2 == 0, "halves are multiplied in pairs of columns");

  // Sums of rows x columns: floats, or pairs of halves.
  using Accumulators = typename Select<HALVES, u32[TM][(TN + 1) / 2], float[TM][TN]>::type;

  // Row of the block's tile that row i of this thread's accumulators is.
  static __device__ __forceinline__ int row_of(int i) {
    const int warp = threadIdx.x / 32 / WARPS_N, lane = threadIdx.x % 32 / 8;
    return warp * 4 * TM +
           (SPREAD ? i / GROUP_M * 4 * GROUP_M + lane * GROUP_M + i % GROUP_M : lane * TM + i);
  }
  static __device__ __forceinline__ int column_of(int j) {
    const int warp = threadIdx.x / 32 % WARPS_N, lane = threadIdx.x % 8;
    return warp * 8 * TN +
           (SPREAD ? j / GROUP_N * 8 * GROUP_N + lane * GROUP_N + j % GROUP_N : lane * TN + j);
  }

  // acc += A[m0 : m0 + BM] B[:, n0 : n0 + BN], by all threads of the block.
  static __device__ __forceinline__ void run(Accumulators& acc, T* shared, const T* a, i64 pitch_a,
                                             const T* b, i64 pitch_b, int m0, int n0, int m, int n,
                                             int k) {
    TileA tile_a(a + m0 * pitch_a, pitch_a, BK);
    TileB tile_b(b + (B_ROWS_ARE_N ? n0 * pitch_b : n0), pitch_b, B_ROWS_ARE_N ? BK : BK * pitch_b);
    auto begin = [&](T* stage, int k_left) {
      tile_a.begin(stage, m - m0, k_left);
      tile_b.begin(stage + BK * PITCH_A, B_ROWS_ARE_N ? n - n0 : k_left,
                   B_ROWS_ARE_N ? k_left : n - n0);
    };
    auto finish = [&](T* stage) {
      tile_a.finish(stage);
      tile_b.finish(stage + BK * PITCH_A);
    };

    begin(shared, k);
    finish(shared);
    __syncthreads();
    for (int k_left = k, buffer = 0; k_left > 0; k_left -= BK) {
      const bool more = k_left > BK;
      T* now = shared + buffer * STAGE;
      buffer = BUFFERS - 1 - buffer;
      T* next = shared + buffer * STAGE;
      if (more) begin(next, k_left - BK);
      multiply(acc, now);
      if constexpr (BUFFERS == 1) __syncthreads();  // everyone has read the only buffer
      if (more) finish(next);
      __syncthreads();
    }
  }

 private:
  static_assert(!ASYNC || BUFFERS == 2, "the copies arrive while the other buffer is read");
  template <int ROWS, int COLS, int PITCH, bool TRANSPOSED, bool ALIGNED>
  using Tile = typename Select<
      ASYNC && can_be_async<T, TRANSPOSED, ALIGNED>,
      OperandAsync<T, ROWS, COLS, PITCH, THREADS, TRANSPOSED, ALIGNED>,
      OperandThroughRegisters<T, ROWS, COLS, PITCH, THREADS, VECTOR, TRANSPOSED, ALIGNED>>::type;
  using TileA = Tile<BM, BK, PITCH_A, true, ALIGNED_A>;
  using TileB =
      Tile<B_ROWS_ARE_N ? BN : BK, B_ROWS_ARE_N ? BK : BN, PITCH_B, B_ROWS_ARE_N, ALIGNED_B>;

  // GROUP elements of T in one access.
  template <int GROUP>
  static __device__ __forceinline__ void read(T* to, const T* from) {
    struct alignas(GROUP * sizeof(T)) Vector {
      T x[GROUP];
    };
    const Vector vector = *reinterpret_cast<const Vector*>(from);
#pragma unroll
    for (int e = 0; e < GROUP; ++e) to[e] = vector.x[e];
  }

  static __device__ __forceinline__ void multiply(Accumulators& acc, const T* stage) {
    const T* a = stage;
    const T* b = stage + BK * PITCH_A;
    constexpr int unroll = TM * TN > 64 && !ASYNC ? 4 : BK;  // more would spill registers
#pragma unroll unroll
    for (int kk = 0; kk < BK; ++kk) {
      T row[TM], column[TN];
#pragma unroll
      for (int i = 0; i < TM; i += GROUP_M) read<GROUP_M>(row + i, a + kk * PITCH_A + row_of(i));
#pragma unroll
      for (int j = 0; j < TN; j += GROUP_N)
        read<GROUP_N>(column + j, b + kk * PITCH_B + column_of(j));
      // Down one column, up the next: two operations in a row share an operand, which spares a read
      // of the register file. Its banks, not the arithmetic, limit this loop.
#pragma unroll
      for (int j = 0; j < TN; j += HALVES ? 2 : 1)
#pragma unroll
        for (int down = 0; down < TM; ++down) {
          const int i = j / (HALVES ? 2 : 1) % 2 == 0 ? down : TM - 1 - down;
          if constexpr (HALVES) {
            const u32 both = row[i].bits | static_cast<u32>(row[i].bits) << 16;
            const u32 pair = column[j].bits | static_cast<u32>(column[j + 1].bits) << 16;
            acc[i][j / 2] = ptx::fma_f16x2(both, pair, acc[i][j / 2]);
          } else {
            acc[i][j] = fmaf(row[i], column[j], acc[i][j]);
          }
        }
    }
  }
};

}  // namespace gemm_core
