// Main loop on WMMA: fragments of M x N x 16 from padded rows in shared memory, halves as operands,
// sums in floats or halves. Any m, n, k.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/numeric.cuh"
#include "gemm_core/pipeline.cuh"
#include "gemm_core/ptx/wmma.cuh"
#include "gemm_core/tile_registers.cuh"

namespace gemm_core {

// What one warp does: FM x FN fragments of its tile, from shared memory laid out by LayoutA (BM rows
// of BK) and LayoutB (BN rows of BK if B_ROWS_ARE_N, else BK rows of BN).
template <class ACC, int M, int N, int FM, int FN, int BK, class LayoutA, class LayoutB,
          bool B_ROWS_ARE_N>
struct WarpWmma {
  using Wmma = ptx::Wmma<M, N>;
  static constexpr int STEPS = BK / 16;
  // Eight sums a lane and fragment: floats, or four pairs of halves.
  using Sums = typename Select<sizeof(ACC) == 4, float[8], u32[4]>::type;
  using Accumulators = Sums[FM][FN];

  struct Fragments {
    u32 a[FM][8], b[FN][8];
  };

  u32 tile_a, tile_b;  // in shared memory
  int warp_row, warp_column;

  __device__ __forceinline__ void load(Fragments& f, u32 stage, int step) const {
#pragma unroll
    for (int i = 0; i < FM; ++i)
      Wmma::load_a(f.a[i], tile_a + stage + LayoutA::at(warp_row + M * i, 2 * step),
                   LayoutA::pitch);
#pragma unroll
    for (int j = 0; j < FN; ++j) {
      const int column = warp_column + N * j;
      if constexpr (B_ROWS_ARE_N) {
        Wmma::load_b_n_rows(f.b[j], tile_b + stage + LayoutB::at(column, 2 * step),
                            LayoutB::pitch);
      } else {
        Wmma::load_b_k_rows(f.b[j], tile_b + stage + LayoutB::at(16 * step, column / 8),
                            LayoutB::pitch);
      }
    }
  }

  __device__ __forceinline__ void multiply(Accumulators& acc, const Fragments& f) const {
#pragma unroll
    for (int i = 0; i < FM; ++i)
#pragma unroll
      for (int j = 0; j < FN; ++j) {
        if constexpr (B_ROWS_ARE_N) {
          Wmma::multiply_n_rows(acc[i][j], f.a[i], f.b[j]);
        } else {
          Wmma::multiply_k_rows(acc[i][j], f.a[i], f.b[j]);
        }
      }
  }

  // A whole tile, each step's fragments loaded before they are multiplied.
  __device__ __forceinline__ void multiply_tile(Accumulators& acc, u32 stage) const {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      Fragments fragments;
      load(fragments, stage, step);
      multiply(acc, fragments);
    }
  }
};

// One BM x BN tile of A B by WARPS_M x WARPS_N warps. A is (m, k) row-major; B is (n, k) rows if
// B_ROWS_ARE_N, else (k, n) row-major. ACC: float or f16. PAD: halves between rows, against bank
// conflicts. ASYNC: a ring of STAGES filled by cp.async, STAGES - 1 tiles ahead; else tiles come
// through registers, into one buffer or (STAGES 2) into the other while this one is multiplied.
// BUFFERED (ASYNC only): fragments of the next k step are loaded while this one is multiplied.
template <class ACC, int M, int N, int BM, int BN, int BK, int WARPS_M, int WARPS_N, int STAGES,
          bool ASYNC, int PAD, bool BUFFERED, bool B_ROWS_ARE_N, bool ALIGNED_A, bool ALIGNED_B>
struct MainloopWmma {
  using T = f16;
  static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
  static constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N, FM = WM / M, FN = WN / N;
  static constexpr int ROWS_B = B_ROWS_ARE_N ? BN : BK, COLS_B = B_ROWS_ARE_N ? BK : BN;
  static_assert(WM % M == 0 && WN % N == 0 && BK % 16 == 0, "whole fragments");
  static_assert(ASYNC || STAGES <= 2, "registers hold one tile");

  using LayoutA = Padded<T, BK, PAD>;
  using LayoutB = Padded<T, COLS_B, PAD>;
  static constexpr int A_BYTES = BM * LayoutA::pitch * 2;
  static constexpr int STAGE_BYTES = A_BYTES + ROWS_B * LayoutB::pitch * 2;

  using Warp = WarpWmma<ACC, M, N, FM, FN, BK, LayoutA, LayoutB, B_ROWS_ARE_N>;
  using Accumulators = typename Warp::Accumulators;

  static __device__ __forceinline__ int warp_row() { return threadIdx.x / 32 / WARPS_N * WM; }
  static __device__ __forceinline__ int warp_column() { return threadIdx.x / 32 % WARPS_N * WN; }

  // acc += A[m0 : m0 + BM] B[:, n0 : n0 + BN], by all threads of the block.
  static __device__ __forceinline__ void run(Accumulators& acc, unsigned char* shared, const T* a,
                                             i64 pitch_a, const T* b, i64 pitch_b, int m0, int n0,
                                             int m, int n, int k) {
    a += m0 * pitch_a;
    b += B_ROWS_ARE_N ? n0 * pitch_b : n0;
    const u32 base = ptx::shared_address(shared);
    const Warp warp{base, base + A_BYTES, warp_row(), warp_column()};
    if constexpr (!ASYNC) {
      through_registers(acc, warp, shared, a, pitch_a, b, pitch_b, m - m0, n - n0, k);
      return;
    }
    const StageCopy<CopyA, CopyB, A_BYTES> copies{CopyA(a, pitch_a, m - m0, threadIdx.x),
                                                  CopyB(b, pitch_b, n - n0, threadIdx.x)};
    if constexpr (BUFFERED) {
      multistage<STAGES, STAGE_BYTES, BK>(acc, warp, copies, shared, k);
    } else {
      asynchronous(acc, warp, copies, shared, k);
    }
  }

 private:
  using CopyA = TileCopy<T, LayoutA, BM, BK, THREADS, false, ALIGNED_A>;
  using CopyB = TileCopy<T, LayoutB, ROWS_B, COLS_B, THREADS, !B_ROWS_ARE_N, ALIGNED_B>;

  static __device__ __forceinline__ void asynchronous(Accumulators& acc, const Warp& warp,
                                                      StageCopy<CopyA, CopyB, A_BYTES> copies,
                                                      unsigned char* shared, int k) {
    constexpr int AHEAD = STAGES - 1;
    const u32 base = ptx::shared_address(shared);
    int k_left = k;  // from the tile to copy on
    u32 next = 0;    // its stage
    auto copied = [&] {
      ptx::cp_async_commit();  // also an empty group, so that the count of groups stays the same
      copies.advance();
      k_left -= BK;
      next = next == AHEAD * STAGE_BYTES ? 0 : next + STAGE_BYTES;
    };
    for (int s = 0; s < AHEAD; ++s) {
      if (k_left > 0) copies.copy(shared, next, k_left);
      copied();
    }
    u32 stage = 0;
    int left = (k + BK - 1) / BK;
    auto multiply_tile = [&](auto copy) {
      if constexpr (STAGES == 1) {
        copy();
        copied();
      }
      ptx::cp_async_wait<STAGES == 1 ? 0 : STAGES - 2>();
      __syncthreads();  // this tile is here, and everyone has read the one before
      if constexpr (STAGES > 1) {
        copy();
        copied();
      }
      warp.multiply_tile(acc, stage);
      if constexpr (STAGES == 1) __syncthreads();
      stage = stage == AHEAD * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
      --left;
    };
    while (copies.whole(k_left))
      multiply_tile([&] { copies.template copy_whole<1>(base + next, 0); });
    while (left > 0)
      multiply_tile([&] {
        if (k_left > 0) copies.copy(shared, next, k_left);
      });
    ptx::cp_async_wait<0>();
  }

  static __device__ __forceinline__ void through_registers(Accumulators& acc, const Warp& warp,
                                                           unsigned char* shared, const T* a,
                                                           i64 pitch_a, const T* b, i64 pitch_b,
                                                           int m_left, int n_left, int k) {
    TileRegisters<T, T, BM, BK, THREADS, 8, ALIGNED_A> next_a;
    TileRegisters<T, T, ROWS_B, COLS_B, THREADS, 8, ALIGNED_B> next_b;
    auto fetch = [&](int k0) {
      next_a.fetch(a + k0, pitch_a, m_left, k - k0);
      next_b.fetch(b + (B_ROWS_ARE_N ? k0 : k0 * pitch_b), pitch_b,
                   B_ROWS_ARE_N ? n_left : k - k0, B_ROWS_ARE_N ? k - k0 : n_left);
    };
    auto place = [&](u32 stage) {
      next_a.template place<false>(reinterpret_cast<T*>(shared + stage), LayoutA::pitch);
      next_b.template place<false>(reinterpret_cast<T*>(shared + stage + A_BYTES), LayoutB::pitch);
    };
    if constexpr (STAGES == 1) {
      for (int k0 = 0; k0 < k; k0 += BK) {
        fetch(k0);
        place(0);
        __syncthreads();
        warp.multiply_tile(acc, 0);
        __syncthreads();
      }
      return;
    }
    fetch(0);
    place(0);
    __syncthreads();
    u32 stage = 0;
    for (int k0 = 0; k0 < k; k0 += BK) {
      const bool more = k0 + BK < k;
      if (more) fetch(k0 + BK);
      warp.multiply_tile(acc, stage);
      stage = STAGE_BYTES - stage;
      if (more) place(stage);
      __syncthreads();
    }
  }
};

}  // namespace gemm_core
