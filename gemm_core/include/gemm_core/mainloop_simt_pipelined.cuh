// Main loop on CUDA cores for floats of which both operands are stored as rows of k: a ring of
// stages that cp.async fills between the products, and fragments loaded a step ahead. Any m, n, k.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/outer_product.cuh"
#include "gemm_core/ptx/cp_async.cuh"

namespace gemm_core {

// Copies ROWS x BK floats, stored as rows of k, to shared memory with k outermost, PITCH elements
// apart. A warp copies eight k of four rows at once, which fall into different banks.
template <int ROWS, int BK, int PITCH, int THREADS>
struct TransposingCopy {
  static constexpr int ROW_STEP = THREADS / 8, PARTS = ROWS / ROW_STEP;
  static_assert(BK % 8 == 0 && THREADS % 8 == 0 && ROWS % ROW_STEP == 0, "equal shares");

  const float* source;  // this thread's first element of the next tile
  i64 row_step;
  int row, k;  // of that element in the tile
  int rows_left;

  __device__ __forceinline__ TransposingCopy(const float* first_tile, i64 pitch, int rows_left_)
      : row_step(ROW_STEP * pitch),
        row(threadIdx.x / 8),
        k(threadIdx.x % 8),
        rows_left(rows_left_) {
    source = first_tile + row * pitch + k;
  }

  // Whether the next tile, of which k_left of k exist, is full.
  __device__ __forceinline__ bool is_full(int k_left) const {
    return k_left >= BK && rows_left >= ROWS;
  }

  // Copies part 0 .. PARTS - 1 of a full tile; `from` is `source`, advanced by row_step per part.
  __device__ __forceinline__ void copy_part(u32 target, int part, const float* from) const {
    target += (k * PITCH + row + part * ROW_STEP) * 4;
#pragma unroll
    for (int e = 0; e < BK; e += 8) ptx::cp_async_4(target + e * PITCH * 4, from + e);
  }

  // Copies the next tile; zeros beyond rows_left rows and k_left columns.
  __device__ __forceinline__ void copy_guarded(u32 target, int k_left) const {
    const float* from = source;
    target += (k * PITCH + row) * 4;
#pragma unroll 1
    for (int part = 0; part < PARTS; ++part, from += row_step, target += ROW_STEP * 4)
#pragma unroll
      for (int e = 0; e < BK; e += 8)
        ptx::cp_async_4(target + e * PITCH * 4, from + e,
                        row + part * ROW_STEP < rows_left && k + e < k_left);
  }

  // Moves on to the next tile.
  __device__ __forceinline__ void advance() { source += BK; }
};

// Computes one BM x BN tile of A B by WARPS_M x WARPS_N warps of 4 x 8 threads, THREAD_M x THREAD_N
// sums a thread. A is (m, k), B is (n, k). A thread's rows and columns are groups of four,
// interleaved with other threads' groups, so that the threads of a warp read neighbouring words.
template <int BM, int BN, int BK, int WARPS_M, int WARPS_N, int THREAD_M_, int THREAD_N_,
          int STAGES>
struct MainloopSimtPipelined {
  using T = float;
  static constexpr int THREAD_M = THREAD_M_, THREAD_N = THREAD_N_, THREADS = 32 * WARPS_M * WARPS_N;
  // Four elements more than a row has: the transposing copies then have no bank conflicts.
  static constexpr int PITCH_A = BM + 4, PITCH_B = BN + 4;
  static constexpr int A_FLOATS = BK * PITCH_A, STAGE_BYTES = (A_FLOATS + BK * PITCH_B) * 4;
  static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES;
  static_assert(BM == WARPS_M * 4 * THREAD_M && BN == WARPS_N * 8 * THREAD_N,
                "a warp is 4 x 8 threads");
  static_assert(THREAD_M % 4 == 0 && THREAD_N % 4 == 0 && STAGES >= 2, "whole groups");

  using Accumulators = float[THREAD_M][THREAD_N];

  static constexpr bool COLUMNS_ARE_PAIRED = true;
  // The row in the block's tile of row i of this thread's accumulators; column_of likewise.
  static __device__ __forceinline__ int row_of(int i) {
    const int warp = threadIdx.x / 32 / WARPS_N, lane = threadIdx.x % 32 / 8;
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
    TransposingCopy<BM, BK, PITCH_A, THREADS> copy_a(a + m0 * pitch_a, pitch_a, m - m0);
    TransposingCopy<BN, BK, PITCH_B, THREADS> copy_b(b + n0 * pitch_b, pitch_b, n - n0);
    constexpr int PARTS_A = copy_a.PARTS, PARTS = PARTS_A + copy_b.PARTS;
    // The first quarter of the steps copies.
    constexpr int PARTS_PER_STEP = (PARTS + BK / 4 - 1) / (BK / 4);
    int k_left = k;       // from the next tile to copy to the end
    u32 write_stage = 0;  // where that tile goes, in bytes
    const auto next_stage = [](u32 stage) {
      return stage == (STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
    };
    const auto copy_guarded = [&] {
      if (k_left <= 0) return;
      copy_a.copy_guarded(base + write_stage, k_left);
      copy_b.copy_guarded(base + write_stage + A_FLOATS * 4, k_left);
    };
    const auto commit = [&] {
      ptx::cp_async_commit();  // an empty group too, so that the number of groups stays the same
      k_left -= BK;
      write_stage = next_stage(write_stage);
      copy_a.advance();
      copy_b.advance();
    };
    // Parts of a full tile, in order; the addresses follow from each other.
    const float *from_a = copy_a.source, *from_b = copy_b.source;
    const auto copy_part = [&](int part) {
      if (part < PARTS_A) {
        copy_a.copy_part(base + write_stage, part, from_a);
        from_a += copy_a.row_step;
      } else if (part < PARTS) {
        copy_b.copy_part(base + write_stage + A_FLOATS * 4, part - PARTS_A, from_b);
        from_b += copy_b.row_step;
      }
    };
    const auto is_full = [&] { return copy_a.is_full(k_left) && copy_b.is_full(k_left); };

#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) {
      if (is_full()) {
        from_a = copy_a.source, from_b = copy_b.source;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) copy_part(part);
      } else {
        copy_guarded();
      }
      commit();
    }
    int tiles_left = (k + BK - 1) / BK;
    if (tiles_left == 0) return;
    float row[2][THREAD_M], column[2][THREAD_N];
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();
    load(row[0], column[0], shared, 0);
    u32 read_stage = 0;
#pragma unroll 1
    do {
      const bool full = is_full();
      from_a = copy_a.source, from_b = copy_b.source;
      if (!full) copy_guarded();
#pragma unroll
      for (int step = 0; step < BK; ++step) {
        if (step + 1 < BK) {
          load(row[(step + 1) % 2], column[(step + 1) % 2], shared + read_stage, step + 1);
          if (full && step * PARTS_PER_STEP < PARTS) {
#pragma unroll
            for (int part = 0; part < PARTS_PER_STEP; ++part)
              copy_part(step * PARTS_PER_STEP + part);
          }
        } else {
          commit();
          read_stage = next_stage(read_stage);
          ptx::cp_async_wait<STAGES - 2>();
          __syncthreads();  // the next tile has arrived, and every warp has loaded this one
          load(row[0], column[0], shared + read_stage, 0);
        }
        add_outer_product(sums, row[step % 2], column[step % 2]);
      }
    } while (--tiles_left > 0);
    ptx::cp_async_wait<0>();
  }

 private:
  // Loads the fragments of one k of a stage.
  static __device__ __forceinline__ void load(float (&row)[THREAD_M], float (&column)[THREAD_N],
                                              const unsigned char* stage, int k) {
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
};

}  // namespace gemm_core
