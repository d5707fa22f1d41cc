// Main loop on mma.sync: ldmatrix from XOR-swizzled tiles, in the pipeline of pipeline.cuh. Any m,
// n, k.
#pragma once

#include "gemm_core/pipeline.cuh"
#include "gemm_core/warp_mma.cuh"

namespace gemm_core {

// Computes one BM x BN tile of A B by WARPS_M x WARPS_N warps. A is (m, k) row-major; B is (n, k)
// rows if B_ROWS_ARE_N, else (k, n) row-major. SPLIT_TF32: see WarpMma.
template <class T_, int BM, int BN, int BK, int WARPS_M, int WARPS_N, int STAGES, bool B_ROWS_ARE_N,
          bool ALIGNED_A, bool ALIGNED_B, bool SPLIT_TF32>
struct MainloopMma {
  using T = T_;
  static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
  static constexpr int WARP_M = BM / WARPS_M, WARP_N = BN / WARPS_N;
  static constexpr int A_BYTES = BM * BK * sizeof(T), STAGE_BYTES = A_BYTES + BN * BK * sizeof(T);
  static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES;
  using Warp = WarpMma<T, BN, BK, WARP_M, WARP_N, B_ROWS_ARE_N, SPLIT_TF32>;
  using Accumulators = typename Warp::Accumulators;
  static constexpr int FRAGMENTS_M = Warp::FRAGMENTS_M, FRAGMENTS_N = Warp::FRAGMENTS_N;

  static __device__ __forceinline__ int warp_row() { return threadIdx.x / 32 / WARPS_N * WARP_M; }
  static __device__ __forceinline__ int warp_column() { return threadIdx.x / 32 % WARPS_N * WARP_N; }

  // sums += A[m0 : m0 + BM] B[:, n0 : n0 + BN], by all threads of the block.
  static __device__ __forceinline__ void run(Accumulators& sums, unsigned char* shared, const T* a,
                                             i64 pitch_a, const T* b, i64 pitch_b, int m0, int n0,
                                             int m, int n, int k) {
    const u32 base = ptx::shared_address(shared);
    const CopyA copy_a(a + m0 * pitch_a, pitch_a, m - m0, threadIdx.x);
    const CopyB copy_b(b + (B_ROWS_ARE_N ? n0 * pitch_b : n0), pitch_b, n - n0, threadIdx.x);
    multistage<STAGES, STAGE_BYTES, BK>(sums, Warp(base, base + A_BYTES, warp_row(), warp_column()),
                                        StageCopy<CopyA, CopyB, A_BYTES>{copy_a, copy_b}, shared,
                                        k);
  }

 private:
  using CopyA = TileCopy<T, typename Warp::LayoutA, BM, BK, THREADS, false, ALIGNED_A>;
  using CopyB = TileCopy<T, typename Warp::LayoutB, B_ROWS_ARE_N ? BN : BK, B_ROWS_ARE_N ? BK : BN,
                         THREADS, !B_ROWS_ARE_N, ALIGNED_B>;
};

}  // namespace gemm_core
