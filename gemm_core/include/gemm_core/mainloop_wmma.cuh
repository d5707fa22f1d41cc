// Main loop on WMMA: M x N x 16 fragments from padded rows in shared memory. Operands are halves,
// sums are floats or halves. Any m, n, k.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/numeric.cuh"
#include "gemm_core/pipeline.cuh"
#include "gemm_core/ptx/wmma.cuh"
#include "gemm_core/tile_registers.cuh"

namespace gemm_core {

// The part of one warp: loads and multiplies FRAGMENTS_M x FRAGMENTS_N fragments of its tile, from
// shared memory with LayoutA (BM rows of BK) and LayoutB (BN rows of BK if B_ROWS_ARE_N, else BK
// rows of BN).
template <class Accumulator, int M, int N, int FRAGMENTS_M, int FRAGMENTS_N, int BK, class LayoutA,
          class LayoutB, bool B_ROWS_ARE_N>
struct WarpWmma {
  using Wmma = ptx::Wmma<M, N>;
  static constexpr int K_STEPS = BK / 16;
  // Eight sums per lane and fragment: floats, or four pairs of halves.
  using Sums = typename Select<sizeof(Accumulator) == 4, float[8], u32[4]>::type;
  using Accumulators = Sums[FRAGMENTS_M][FRAGMENTS_N];

  struct Fragments {
    u32 a[FRAGMENTS_M][8], b[FRAGMENTS_N][8];
  };

  u32 tile_a, tile_b;  // shared addresses
  int warp_row, warp_column;

  __device__ __forceinline__ void load(Fragments& f, u32 stage, int k_step) const {
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i)
      Wmma::load_a(f.a[i], tile_a + stage + LayoutA::offset(warp_row + M * i, 2 * k_step),
                   LayoutA::PITCH);
#pragma unroll
    for (int j = 0; j < FRAGMENTS_N; ++j) {
      const int column = warp_column + N * j;
      if constexpr (B_ROWS_ARE_N) {
        Wmma::load_b_n_rows(f.b[j], tile_b + stage + LayoutB::offset(column, 2 * k_step),
                            LayoutB::PITCH);
      } else {
        Wmma::load_b_k_rows(f.b[j], tile_b + stage + LayoutB::offset(16 * k_step, column / 8),
                            LayoutB::PITCH);
      }
    }
  }

  __device__ __forceinline__ void multiply(Accumulators& sums, const Fragments& f) const {
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i)
#pragma unroll
      for (int j = 0; j < FRAGMENTS_N; ++j) {
        if constexpr (B_ROWS_ARE_N) {
          Wmma::multiply_n_rows(sums[i][j], f.a[i], f.b[j]);
        } else {
          Wmma::multiply_k_rows(sums[i][j], f.a[i], f.b[j]);
        }
      }
  }

  // Multiplies a tile; the fragments of each k step are loaded right before their products.
  __device__ __forceinline__ void multiply_tile(Accumulators& sums, u32 stage) const {
#pragma unroll
    for (int k_step = 0; k_step < K_STEPS; ++k_step) {
      Fragments fragments;
      load(fragments, stage, k_step);
      multiply(sums, fragments);
    }
  }
};

// Computes one BM x BN tile of A B by WARPS_M x WARPS_N warps. A is (m, k) row-major; B is (n, k)
// rows if B_ROWS_ARE_N, else (k, n) row-major. Accumulator: float or f16. PAD: halves between rows,
// which avoid bank conflicts. ASYNC: a ring of STAGES filled by cp.async, STAGES - 1 tiles ahead;
// else tiles are copied through registers, with STAGES 2 into one buffer while the other is
// multiplied. PREFETCH_FRAGMENTS (ASYNC only): fragments of the next k step are loaded while this
// one is multiplied.
template <class Accumulator, int M, int N, int BM, int BN, int BK, int WARPS_M, int WARPS_N,
          int STAGES, bool ASYNC, int PAD, bool PREFETCH_FRAGMENTS, bool B_ROWS_ARE_N, bool ALIGNED_A,
          bool ALIGNED_B>
struct MainloopWmma {
  using T = f16;
  static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
  static constexpr int WARP_M = BM / WARPS_M, WARP_N = BN / WARPS_N;
  static constexpr int FRAGMENTS_M = WARP_M / M, FRAGMENTS_N = WARP_N / N;
  static constexpr int ROWS_B = B_ROWS_ARE_N ? BN : BK, COLS_B = B_ROWS_ARE_N ? BK : BN;
  static_assert(WARP_M % M == 0 && WARP_N % N == 0 && BK % 16 == 0, "whole fragments");
  static_assert(ASYNC || STAGES <= 2, "registers hold one tile");

  using LayoutA = Padded<T, BK, PAD>;
  using LayoutB = Padded<T, COLS_B, PAD>;
  static constexpr int A_BYTES = BM * LayoutA::PITCH * 2;
  static constexpr int STAGE_BYTES = A_BYTES + ROWS_B * LayoutB::PITCH * 2;
  static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES;

  using Warp =
      WarpWmma<Accumulator, M, N, FRAGMENTS_M, FRAGMENTS_N, BK, LayoutA, LayoutB, B_ROWS_ARE_N>;
  using Accumulators = typename Warp::Accumulators;

  static __device__ __forceinline__ int warp_row() { return threadIdx.x / 32 / WARPS_N * WARP_M; }
  static __device__ __forceinline__ int warp_column() { return threadIdx.x / 32 % WARPS_N * WARP_N; }

  // sums += A[m0 : m0 + BM] B[:, n0 : n0 + BN], by all threads of the block.
  static __device__ __forceinline__ void run(Accumulators& sums, unsigned char* shared, const T* a,
                                             i64 pitch_a, const T* b, i64 pitch_b, int m0, int n0,
                                             int m, int n, int k) {
    a += m0 * pitch_a;
    b += B_ROWS_ARE_N ? n0 * pitch_b : n0;
    const u32 base = ptx::shared_address(shared);
    const Warp warp{base, base + A_BYTES, warp_row(), warp_column()};
    if constexpr (!ASYNC) {
      run_through_registers(sums, warp, shared, a, pitch_a, b, pitch_b, m - m0, n - n0, k);
      return;
    }
    const StageCopy<CopyA, CopyB, A_BYTES> stage_copy{CopyA(a, pitch_a, m - m0, threadIdx.x),
                                                  CopyB(b, pitch_b, n - n0, threadIdx.x)};
    if constexpr (PREFETCH_FRAGMENTS) {
      multistage<STAGES, STAGE_BYTES, BK>(sums, warp, stage_copy, shared, k);
    } else {
      run_async(sums, warp, stage_copy, shared, k);
    }
  }

 private:
  using CopyA = TileCopy<T, LayoutA, BM, BK, THREADS, false, ALIGNED_A>;
  using CopyB = TileCopy<T, LayoutB, ROWS_B, COLS_B, THREADS, !B_ROWS_ARE_N, ALIGNED_B>;

  static __device__ __forceinline__ void run_async(Accumulators& sums, const Warp& warp,
                                                StageCopy<CopyA, CopyB, A_BYTES> stage_copy,
                                                unsigned char* shared, int k) {
    constexpr int STAGES_AHEAD = STAGES - 1;
    const u32 base = ptx::shared_address(shared);
    int k_left = k;       // from the next tile to copy to the end
    u32 write_stage = 0;  // where that tile goes
    auto commit_stage = [&] {
      ptx::cp_async_commit();  // an empty group too, so that the number of groups stays the same
      stage_copy.advance();
      k_left -= BK;
      write_stage = write_stage == STAGES_AHEAD * STAGE_BYTES ? 0 : write_stage + STAGE_BYTES;
    };
    for (int s = 0; s < STAGES_AHEAD; ++s) {
      if (k_left > 0) stage_copy.copy(shared, write_stage, k_left);
      commit_stage();
    }
    u32 read_stage = 0;
    int tiles_left = (k + BK - 1) / BK;
    auto multiply_tile = [&](auto copy) {
      if constexpr (STAGES == 1) {
        copy();
        commit_stage();
      }
      ptx::cp_async_wait<STAGES == 1 ? 0 : STAGES - 2>();
      __syncthreads();  // this tile has arrived, and every warp has read the previous one
      if constexpr (STAGES > 1) {
        copy();
        commit_stage();
      }
      warp.multiply_tile(sums, read_stage);
      if constexpr (STAGES == 1) __syncthreads();
      read_stage = read_stage == STAGES_AHEAD * STAGE_BYTES ? 0 : read_stage + STAGE_BYTES;
      --tiles_left;
    };
    while (stage_copy.is_full(k_left))
      multiply_tile([&] { stage_copy.template copy_full<1>(base + write_stage, 0); });
    while (tiles_left > 0)
      multiply_tile([&] {
        if (k_left > 0) stage_copy.copy(shared, write_stage, k_left);
      });
    ptx::cp_async_wait<0>();
  }

  static __device__ __forceinline__ void run_through_registers(Accumulators& sums, const Warp& warp,
                                                           unsigned char* shared, const T* a,
                                                           i64 pitch_a, const T* b, i64 pitch_b,
                                                           int m_left, int n_left, int k) {
    TileRegisters<T, T, BM, BK, THREADS, 8, ALIGNED_A> next_a;
    TileRegisters<T, T, ROWS_B, COLS_B, THREADS, 8, ALIGNED_B> next_b;
    auto load = [&](int k0) {
      next_a.load(a + k0, pitch_a, m_left, k - k0);
      next_b.load(b + (B_ROWS_ARE_N ? k0 : k0 * pitch_b), pitch_b,
                   B_ROWS_ARE_N ? n_left : k - k0, B_ROWS_ARE_N ? k - k0 : n_left);
    };
    auto store = [&](u32 stage) {
      next_a.template store<false>(reinterpret_cast<T*>(shared + stage), LayoutA::PITCH);
      next_b.template store<false>(reinterpret_cast<T*>(shared + stage + A_BYTES), LayoutB::PITCH);
    };
    if constexpr (STAGES == 1) {
      for (int k0 = 0; k0 < k; k0 += BK) {
        load(k0);
        store(0);
        __syncthreads();
        warp.multiply_tile(sums, 0);
        __syncthreads();
      }
      return;
    }
    load(0);
    store(0);
    __syncthreads();
    u32 stage = 0;
    for (int k0 = 0; k0 < k; k0 += BK) {
      const bool more = k0 + BK < k;
      if (more) load(k0 + BK);
      warp.multiply_tile(sums, stage);
      stage = STAGE_BYTES - stage;
      if (more) store(stage);
      __syncthreads();
    }
  }
};

}  // namespace gemm_core
