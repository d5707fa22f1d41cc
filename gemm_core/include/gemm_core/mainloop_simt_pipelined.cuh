// Main loop on CUDA cores for floats of which both operands are stored as rows of k: a ring of
// stages that cp.async fills between the products, and fragments loaded a step ahead. Any m, n, k.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/outer_product.cuh"
#include "gemm_core/ptx/cp_async.cuh"

namespace gemm_core {

// Copies ROWS x BK floats, stored as rows of k, to shared memory with k outermost, PITCH elements
// apart. A warp copies eight k of four rows at once, which fall into different banks. KEEPS_STEPS:
// whether the threads have registers left for the steps from row to row.
template <int ROWS, int BK, int PITCH, int THREADS, bool KEEPS_STEPS>
struct TransposingCopy {
  static constexpr int ROW_STEP = THREADS / 8, PARTS = ROWS / ROW_STEP;
  static_assert(BK % 8 == 0 && THREADS % 8 == 0 && ROWS % ROW_STEP == 0, "equal shares");

  const float* source;  // this thread's first element of the next tile
  i64 row_step;
  int row, k;      // where that element goes in the tile
  int parts_left;  // of the operand's rows; the others copy the last of them again

  __device__ __forceinline__ TransposingCopy(const float* first_tile, i64 pitch, int rows_left)
      : row_step(ROW_STEP * pitch), row(threadIdx.x / 8), k(threadIdx.x % 8) {
    const int last_row = (rows_left < ROWS ? rows_left : ROWS) - 1;
    parts_left = (last_row - row + ROW_STEP) / ROW_STEP;
    source = first_tile + (row < last_row ? row : last_row) * pitch + k;
  }

  // Where this thread's first element of a tile goes, in bytes from its start.
  __device__ __forceinline__ u32 offset() const { return (k * PITCH + row) * 4; }

  // Copies part 0 .. PARTS - 1 of the next tile, and moves `from`, which begins as `source`, to the
  // next part. target: the tile's address, by offset() further. FULL: whether the tile has BK of k;
  // else zeros stand beyond k_left.
  template <bool FULL>
  __device__ __forceinline__ void copy_part(u32 target, int part, const float*& from,
                                            int k_left) const {
    target += part * ROW_STEP * 4;
#pragma unroll
    for (int e = 0; e < BK; e += 8) {
      if constexpr (FULL) {
        ptx::cp_async_4(target + e * PITCH * 4, from + e);
      } else {
        ptx::cp_async_4(target + e * PITCH * 4, from + e, k + e < k_left);
      }
    }
    if constexpr (KEEPS_STEPS) {
      from += part + 1 < parts_left ? row_step : 0;  // the same for all tiles, so kept
    } else {
      if (part + 1 < parts_left) from += row_step;  // compared anew in each tile
    }
  }

  // Moves on to the next tile.
  __device__ __forceinline__ void advance() { source += BK; }
};

// Computes one BM x BN tile of A B by SLICES times WARPS_M x WARPS_N warps of 4 x 8 threads,
// THREAD_M x THREAD_N sums a thread. A is (m, k), B is (n, k). Each slice of the warps multiplies a
// part of each stage, and the first has their total: more warps then share few tiles. A thread's rows
// and columns are groups of four, interleaved with other threads' groups, so that the threads of a
// warp read neighbouring words.
template <int BM, int BN, int BK, int WARPS_M, int WARPS_N, int THREAD_M_, int THREAD_N_,
          int STAGES, int SLICES = 1>
struct MainloopSimtPipelined {
  using T = float;
  static constexpr int THREAD_M = THREAD_M_, THREAD_N = THREAD_N_;
  static constexpr int SLICE_THREADS = 32 * WARPS_M * WARPS_N, THREADS = SLICES * SLICE_THREADS;
  // Four elements more than a row has: the transposing copies then have no bank conflicts.
  static constexpr int PITCH_A = BM + 4, PITCH_B = BN + 4;
  static constexpr int A_FLOATS = BK * PITCH_A, STAGE_BYTES = (A_FLOATS + BK * PITCH_B) * 4;
  // The stages, and then the sums of all slices but the first.
  static constexpr int STAGES_BYTES = STAGES * STAGE_BYTES, SUMS_BYTES = (SLICES - 1) * BM * BN * 4;
  static constexpr int SHARED_BYTES = STAGES_BYTES > SUMS_BYTES ? STAGES_BYTES : SUMS_BYTES;
  // The steps of a stage, of one k for each slice.
  static constexpr int STEPS = BK / SLICES;
  static_assert(BM == WARPS_M * 4 * THREAD_M && BN == WARPS_N * 8 * THREAD_N,
                "a warp is 4 x 8 threads");
  static_assert(THREAD_M % 4 == 0 && THREAD_N % 4 == 0 && STAGES >= 2, "whole groups");
  static_assert(STEPS % 2 == 0 && BK % SLICES == 0, "two fragments take turns");

  using Accumulators = float[THREAD_M][THREAD_N];

  static constexpr bool COLUMNS_ARE_PAIRED = true;
  // The row in the block's tile of row i of this thread's accumulators; column_of likewise.
  static __device__ __forceinline__ int row_of(int i) {
    const int warp = threadIdx.x % SLICE_THREADS / 32 / WARPS_N, lane = threadIdx.x % 32 / 8;
    return warp * 4 * THREAD_M + i / 4 * 16 + lane * 4 + i % 4;
  }
  static __device__ __forceinline__ int column_of(int j) {
    const int warp = threadIdx.x / 32 % WARPS_N, lane = threadIdx.x % 8;
    return warp * 8 * THREAD_N + j / 4 * 32 + lane * 4 + j % 4;
  }

  // sums += A[m0 : m0 + BM] B[:, n0 : n0 + BN], by all threads of the block.
  static __device__ __forceinline__ void run(Accumulators& sums, unsigned char* shared,
                                             const float* a, i64 pitch_a, const float* b,
                                             i64 pitch_b, int m0, int n0, int m, int n, int k) {
    const u32 base = ptx::shared_address(shared);
    constexpr bool KEEPS_STEPS = THREAD_M * THREAD_N <= 64;
    TransposingCopy<BM, BK, PITCH_A, THREADS, KEEPS_STEPS> copy_a(a + m0 * pitch_a, pitch_a, m - m0);
    TransposingCopy<BN, BK, PITCH_B, THREADS, KEEPS_STEPS> copy_b(b + n0 * pitch_b, pitch_b, n - n0);
    constexpr int PARTS_A = copy_a.PARTS, PARTS = PARTS_A + copy_b.PARTS;
    int k_left = k;       // from the next tile to copy to the end
    u32 write_stage = 0;  // where that tile goes, in bytes
    const auto next_stage = [](u32 stage) {
      return stage == (STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
    };
    const auto commit = [&] {
      ptx::cp_async_commit();  // an empty group too, so that the number of groups stays the same
      k_left -= BK;
      write_stage = next_stage(write_stage);
      copy_a.advance();
      copy_b.advance();
    };
    // Copies a part of a tile; in order, as the addresses follow from each other.
    const float *from_a = copy_a.source, *from_b = copy_b.source;
    const auto copy_part = [&](int part, auto full) {
      if (part < PARTS_A) {
        const u32 to = base + write_stage + copy_a.offset();
        copy_a.template copy_part<full.VALUE>(to, part, from_a, k_left);
      } else {
        const u32 to = base + write_stage + A_FLOATS * 4 + copy_b.offset();
        copy_b.template copy_part<full.VALUE>(to, part - PARTS_A, from_b, k_left);
      }
    };
    const auto copy_tile = [&](auto full) {
      from_a = copy_a.source, from_b = copy_b.source;
#pragma unroll
      for (int part = 0; part < PARTS; ++part) copy_part(part, full);
    };

#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) {
      if (k_left >= BK) {
        copy_tile(Bool<true>{});
      } else {
        copy_tile(Bool<false>{});
      }
      commit();
    }
    int tiles_left = (k + BK - 1) / BK;
    if (tiles_left == 0) return;  // copies still bring zeros, as the sums are
    float row[2][THREAD_M], column[2][THREAD_N];
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();
    load(row[0], column[0], shared, 0);
    u32 read_stage = 0;
    // Multiplies a tile while another is copied. full: whether that one is; a branch within the steps
    // would keep the compiler from moving instructions across it.
    const auto multiply_tile = [&](auto full) {
      from_a = copy_a.source, from_b = copy_b.source;
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        if (step + 1 < STEPS) {
          load(row[(step + 1) % 2], column[(step + 1) % 2], shared + read_stage, step + 1);
        } else {
          commit();
          read_stage = next_stage(read_stage);
          ptx::cp_async_wait<STAGES - 2>();
          __syncthreads();  // the next tile has arrived, and every warp has loaded this one
          load(row[0], column[0], shared + read_stage, 0);
        }
        // All steps but the last, which commits the copies, share them: so few at a time wait for
        // shared memory, which delivers fragments most of the time.
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
          if (part * (STEPS - 1) / PARTS == step) copy_part(part, full);
        add_outer_product(sums, row[step % 2], column[step % 2]);
      }
      --tiles_left;
    };
#pragma unroll 1
    while (k_left >= BK) multiply_tile(Bool<true>{});
#pragma unroll 1
    while (tiles_left > 0) multiply_tile(Bool<false>{});
    ptx::cp_async_wait<0>();
    if constexpr (SLICES > 1) add_slices(sums, reinterpret_cast<float*>(shared));
  }

 private:
  // Loads the fragments of one step of a stage.
  static __device__ __forceinline__ void load(float (&row)[THREAD_M], float (&column)[THREAD_N],
                                              const unsigned char* stage, int step) {
    const int k = SLICES * step + threadIdx.x / SLICE_THREADS;
    const float* const a = reinterpret_cast<const float*>(stage) + k * PITCH_A;
    const float* const b = reinterpret_cast<const float*>(stage) + A_FLOATS + k * PITCH_B;
#pragma unroll
    for (int i = 0; i < THREAD_M; i += 4) read(row + i, a + row_of(i));
#pragma unroll
    for (int j = 0; j < THREAD_N; j += 4) read(column + j, b + column_of(j));
  }

  static __device__ __forceinline__ void read(float* target, const float* source) {
    const float4 vector = *reinterpret_cast<const float4*>(source);
    target[0] = vector.x, target[1] = vector.y, target[2] = vector.z, target[3] = vector.w;
  }

  // Adds the accumulators of all slices, through shared memory, to those of the first.
  static __device__ __forceinline__ void add_slices(Accumulators& sums, float* shared) {
    const int slice = threadIdx.x / SLICE_THREADS;
    // Accumulator (i, j) of a slice: neighbouring threads store neighbouring words.
    const auto stored = [&](int of_slice, int i, int j) -> float& {
      const int index = ((of_slice - 1) * THREAD_M + i) * THREAD_N + j;
      return shared[index * SLICE_THREADS + threadIdx.x % SLICE_THREADS];
    };
    __syncthreads();  // all threads have read the last stage
    if (slice > 0) {
#pragma unroll
      for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) stored(slice, i, j) = sums[i][j];
    }
    __syncthreads();
    if (slice > 0) return;
#pragma unroll
    for (int other = 1; other < SLICES; ++other)
#pragma unroll
      for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) sums[i][j] += stored(other, i, j);
  }
};

}  // namespace gemm_core
