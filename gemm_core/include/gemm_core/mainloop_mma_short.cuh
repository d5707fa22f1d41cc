// Main loop on mma.sync for a short k: all of it is in shared memory at once, so that there is one
// wait, and no registers hold fragments or addresses of a next stage.
#pragma once

#include "gemm_core/tile_io.cuh"
#include "gemm_core/warp_mma.cuh"

namespace gemm_core {

// As MainloopMma, for at most BK elements of k, and B as (n, k) rows.
template <class T_, int BM, int BN, int BK, int WARPS_M, int WARPS_N, bool ALIGNED_A,
          bool ALIGNED_B>
struct MainloopMmaShort {
  using T = T_;
  static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
  static constexpr int WARP_M = BM / WARPS_M, WARP_N = BN / WARPS_N;
  static constexpr int A_BYTES = BM * BK * sizeof(T), SHARED_BYTES = A_BYTES + BN * BK * sizeof(T);
  using Warp = WarpMma<T, BN, BK, WARP_M, WARP_N, true, false>;
  using Accumulators = typename Warp::Accumulators;
  static constexpr int FRAGMENTS_M = Warp::FRAGMENTS_M, FRAGMENTS_N = Warp::FRAGMENTS_N;

  static __device__ __forceinline__ int warp_row() { return threadIdx.x / 32 / WARPS_N * WARP_M; }
  static __device__ __forceinline__ int warp_column() { return threadIdx.x / 32 % WARPS_N * WARP_N; }

  // sums += A[m0 : m0 + BM] B[:, n0 : n0 + BN], by all threads of the block.
  static __device__ __forceinline__ void run(Accumulators& sums, unsigned char* shared, const T* a,
                                             i64 pitch_a, const T* b, i64 pitch_b, int m0, int n0,
                                             int m, int n, int k) {
    const CopyA copy_a(a + m0 * pitch_a, pitch_a, m - m0, threadIdx.x);
    const CopyB copy_b(b + n0 * pitch_b, pitch_b, n - n0, threadIdx.x);
    StageCopy<CopyA, CopyB, A_BYTES>{copy_a, copy_b}.copy(shared, 0, k);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    const u32 base = ptx::shared_address(shared);
    const Warp warp(base, base + A_BYTES, warp_row(), warp_column());
    for (int k_step = 0; k_step * Warp::STEP_K < k; ++k_step) {
      typename Warp::Fragments fragments;
      warp.load(fragments, 0, k_step);
      warp.multiply(sums, fragments);
    }
    __syncthreads();  // the caller may reuse the shared memory
  }

 private:
  using CopyA = TileCopy<T, typename Warp::LayoutA, BM, BK, THREADS, false, ALIGNED_A>;
  using CopyB = TileCopy<T, typename Warp::LayoutB, BN, BK, THREADS, false, ALIGNED_B>;
};

}  // namespace gemm_core
