// Main loop on CUDA cores for floats of which both operands are stored as rows of k: cp.async copies
// 16 bytes of a row at a time, and threads read four elements of k of a row at once. Any m, n, k.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/operand_tile.cuh"
#include "gemm_core/ptx/cp_async.cuh"

namespace gemm_core {

// Computes one BM x BN tile of A B by WARPS_M x WARPS_N warps of 4 x 8 threads, THREAD_M x THREAD_N
// sums a thread. A is (m, k), B is (n, k). Shared memory holds a ring of STAGES stages of BK
// elements of k. Rows are padded by four elements: eight consecutive rows then start in different
// groups of four banks.
template <int BM, int BN, int BK, int WARPS_M, int WARPS_N, int THREAD_M_, int THREAD_N_, int STAGES,
          bool ALIGNED_A, bool ALIGNED_B>
struct MainloopSimtRows {
  using T = float;
  static constexpr int THREAD_M = THREAD_M_, THREAD_N = THREAD_N_, THREADS = 32 * WARPS_M * WARPS_N;
  static constexpr int PITCH = BK + 4, A_BYTES = BM * PITCH * 4, STAGE_BYTES = A_BYTES + BN * PITCH * 4;
  static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES;
  static_assert(BM == WARPS_M * 4 * THREAD_M && BN == WARPS_N * 8 * THREAD_N,
                "a warp is 4 x 8 threads");
  static_assert(PITCH / 4 % 2 == 1, "eight rows start in different groups of four banks");

  using Accumulators = float[THREAD_M][THREAD_N];

  // Neighbouring columns belong to different threads.
  static constexpr bool COLUMNS_ARE_PAIRED = false;
  // The row in the block's tile of row i of this thread's accumulators; column_of likewise.
  static __device__ __forceinline__ int row_of(int i) {
    const int warp = threadIdx.x / 32 / WARPS_N, lane = threadIdx.x % 32 / 8;
    return warp * 4 * THREAD_M + 4 * i + lane;
  }
  static __device__ __forceinline__ int column_of(int j) {
    const int warp = threadIdx.x / 32 % WARPS_N, lane = threadIdx.x % 8;
    return warp * 8 * THREAD_N + 8 * j + lane;
  }

  // sums += A[m0 : m0 + BM] B[:, n0 : n0 + BN], by all threads of the block.
  static __device__ __forceinline__ void run(Accumulators& sums, unsigned char* shared,
                                             const float* a, i64 pitch_a, const float* b,
                                             i64 pitch_b, int m0, int n0, int m, int n, int k) {
    Copy<BM, ALIGNED_A> copy_a(a + m0 * pitch_a, pitch_a, BK);
    Copy<BN, ALIGNED_B> copy_b(b + n0 * pitch_b, pitch_b, BK);
    int k_left = k;  // from the next stage to copy to the end
    const auto copy = [&](int stage) {
      if (k_left > 0) {
        unsigned char* const target = shared + stage * STAGE_BYTES;
        copy_a.start_copy(reinterpret_cast<float*>(target), m - m0, k_left);
        copy_b.start_copy(reinterpret_cast<float*>(target + A_BYTES), n - n0, k_left);
        k_left -= BK;
      }
      ptx::cp_async_commit();  // an empty group too, so that the number of groups stays the same
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) copy(stage);
    int read_stage = 0, write_stage = STAGES - 1;
    for (int left = k; left > 0; left -= BK) {
      ptx::cp_async_wait<STAGES - 2>();
      __syncthreads();  // this stage has arrived, and every warp has read the one to be written
      copy(write_stage);
      const unsigned char* const stage = shared + read_stage * STAGE_BYTES;
      if (left >= BK) {
#pragma unroll
        for (int step = 0; step < BK; step += STEP) multiply(sums, stage, step);
      } else {  // the last stage is read as far as k reaches
#pragma unroll 1
        for (int step = 0; step < left; step += STEP) multiply(sums, stage, step);
      }
      read_stage = read_stage == STAGES - 1 ? 0 : read_stage + 1;
      write_stage = write_stage == STAGES - 1 ? 0 : write_stage + 1;
    }
  }

 private:
  template <int ROWS, bool ALIGNED>
  using Copy = OperandAsync<float, ROWS, BK, PITCH, THREADS, false, ALIGNED>;

  // The elements of k that a thread reads at once; past the end of k they are 0.
  static constexpr int STEP = 4;

  // Adds the products of the elements k to k + STEP of a stage.
  static __device__ __forceinline__ void multiply(Accumulators& sums, const unsigned char* stage,
                                                  int k) {
    const float* const a = reinterpret_cast<const float*>(stage) + row_of(0) * PITCH + k;
    const float* const b = reinterpret_cast<const float*>(stage + A_BYTES) + column_of(0) * PITCH + k;
    float row[THREAD_M][STEP], column[STEP];
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) read(row[i], a + 4 * i * PITCH);
    // Consecutive operations share the element of B, which saves a read of the register file.
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) {
      read(column, b + 8 * j * PITCH);
#pragma unroll
      for (int e = 0; e < STEP; ++e)
#pragma unroll
        for (int step = 0; step < THREAD_M; ++step) {
          const int i = e % 2 == 0 ? step : THREAD_M - 1 - step;
          sums[i][j] = fmaf(row[i][e], column[e], sums[i][j]);
        }
    }
  }

  static __device__ __forceinline__ void read(float (&target)[STEP], const float* source) {
    const float4 vector = *reinterpret_cast<const float4*>(source);
    target[0] = vector.x, target[1] = vector.y, target[2] = vector.z, target[3] = vector.w;
  }
};

}  // namespace gemm_core
