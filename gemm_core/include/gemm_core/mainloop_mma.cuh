// Main loop on mma.sync: ldmatrix, XOR swizzle, a ring of cp.async stages, fragments of the next
// k step loaded while the tensor cores work on this one. Any m, n, k.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/ldmatrix.cuh"
#include "gemm_core/ptx/mma.cuh"
#include "gemm_core/tile_io.cuh"

namespace gemm_core {

// One BM x BN tile of A B by WARPS_M x WARPS_N warps. A is (m, k) row-major; B is (n, k) rows if
// B_ROWS_ARE_N, else (k, n) row-major. SPLIT (float only) is 3xTF32: each operand the sum of a large
// and a small TF32 number, three of the four products formed.
template <class T_, int BM_, int BN_, int BK_, int WARPS_M_, int WARPS_N_, int STAGES_,
          bool B_ROWS_ARE_N_, bool ALIGNED_A_, bool ALIGNED_B_, bool SPLIT_ = false>
struct MainloopMma {
  using T = T_;
  static constexpr int BM = BM_, BN = BN_, BK = BK_, STAGES = STAGES_;
  static constexpr int WARPS_N = WARPS_N_, THREADS = 32 * WARPS_M_ * WARPS_N_;
  static constexpr bool B_ROWS_ARE_N = B_ROWS_ARE_N_, SPLIT = SPLIT_;
  static constexpr bool TF32 = sizeof(T) == 4;
  static_assert(!TF32 || B_ROWS_ARE_N, "ldmatrix cannot transpose 32-bit elements");
  static_assert(TF32 || !SPLIT, "only float operands are split");

  // A k step is 32 bytes of a row: two 16-byte chunks, one ldmatrix.x4 for 16 rows.
  static constexpr int KSTEP = 32 / sizeof(T), CHUNK = 16 / sizeof(T);
  static constexpr int STEPS = BK / KSTEP;  // even: fragments alternate across tiles
  static constexpr int WM = BM / WARPS_M_, WN = BN / WARPS_N_;
  static constexpr int MI = WM / 16, NI = WN / 8;
  static_assert(WM % 16 == 0 && WN % 16 == 0 && STEPS % 2 == 0 && STAGES >= 2, "");

  static constexpr int A_BYTES = BM * BK * sizeof(T), STAGE_BYTES = A_BYTES + BN * BK * sizeof(T);

  // acc[i][j] is the C fragment (fragments.py: mma_m16n8k16_c) of rows 16 i and columns 8 j of the
  // warp's tile.
  using Accumulators = float[MI][NI][4];

  struct Fragments {
    u32 a[MI][4];
    u32 b[NI / 2][4];  // two n-blocks each: {k low, k high} of the first, then of the second
  };

  static __device__ __forceinline__ int warp_row() { return threadIdx.x / 32 / WARPS_N * WM; }
  static __device__ __forceinline__ int warp_column() { return threadIdx.x / 32 % WARPS_N * WN; }

  // acc += A[m0 : m0 + BM] B[:, n0 : n0 + BN], by all threads of the block.
  static __device__ __forceinline__ void run(Accumulators& acc, unsigned char* shared, const T* a,
                                             i64 pitch_a, const T* b, i64 pitch_b, int m0, int n0,
                                             int m, int n, int k) {
    const u32 base = ptx::shared_address(shared);
    const int tiles_k = (k + BK - 1) / BK;
    TileCopy<T, BM, BK, THREADS, ALIGNED_A_> copy_a(a + m0 * pitch_a, pitch_a);
    CopyB copy_b(B_ROWS_ARE_N ? b + n0 * pitch_b : b + n0, pitch_b);
    const i64 step_b = B_ROWS_ARE_N ? BK : BK * pitch_b;

    int next = 0;  // the tile to copy
    u32 next_stage = 0;
    auto copy_part = [&](int part) {
      if (next >= tiles_k) return;
      if (part == 0) {
        const int k_left = k - next * BK;
        copy_a.begin(next_stage, m - m0, k_left);
        copy_b.begin(next_stage + A_BYTES, B_ROWS_ARE_N ? n - n0 : k_left,
                     B_ROWS_ARE_N ? k_left : n - n0);
      }
      copy_a.template copy<PARTS>(shared, base, part);
      copy_b.template copy<PARTS>(shared, base, part);
    };
    auto finish_copy = [&] {
      ptx::cp_async_commit();  // also an empty group, so that the count of groups stays the same
      if (next++ >= tiles_k) return;
      next_stage = next_stage + STAGE_BYTES == STAGES * STAGE_BYTES ? 0 : next_stage + STAGE_BYTES;
      copy_a.end(BK);
      copy_b.end(step_b);
    };

    for (int s = 0; s < STAGES - 1; ++s) {
#pragma unroll
      for (int part = 0; part < PARTS; ++part) copy_part(part);
      finish_copy();
    }
    Fragments fragments[2];
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();
    load_fragments(fragments[0], base, 0);
    u32 stage = base;
    for (int tile = 0; tile < tiles_k; ++tile) {
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        if (step + 1 < STEPS) {
          load_fragments(fragments[(step + 1) % 2], stage, step + 1);
          copy_part(step);
          if (step + 2 == STEPS) finish_copy();
        } else {
          stage = stage == base + (STAGES - 1) * STAGE_BYTES ? base : stage + STAGE_BYTES;
          ptx::cp_async_wait<STAGES - 2>();
          __syncthreads();  // the next tile is here, and everyone has read this one
          if (tile + 1 < tiles_k) load_fragments(fragments[0], stage, 0);
        }
        multiply(acc, fragments[step % 2]);
      }
    }
    ptx::cp_async_wait<0>();
    __syncthreads();  // the caller may use the shared memory
  }

 private:
  using CopyB = TileCopy<T, B_ROWS_ARE_N ? BN : BK, B_ROWS_ARE_N ? BK : BN, THREADS, ALIGNED_B_>;
  static constexpr int PARTS = STEPS - 1;  // copies are issued between the k steps of a tile

  static __device__ __forceinline__ void load_fragments(Fragments& f, u32 stage, int step) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < MI; ++i) {
      const int row = warp_row() + 16 * i + lane % 16;
      const int chunk = 2 * step + lane / 16;
      ptx::ldmatrix_x4(f.a[i], stage + Swizzle<BK / CHUNK>::at(row, chunk));
    }
#pragma unroll
    for (int j = 0; j < NI / 2; ++j) {
      const int n0 = warp_column() + 16 * j;
      if constexpr (B_ROWS_ARE_N) {
        const int row = n0 + lane % 8 + 8 * (lane / 16);
        const int chunk = 2 * step + lane / 8 % 2;
        ptx::ldmatrix_x4(f.b[j], stage + A_BYTES + Swizzle<BK / CHUNK>::at(row, chunk));
      } else {
        const int row = KSTEP * step + lane % 16;
        const int chunk = n0 / CHUNK + lane / 16;
        ptx::ldmatrix_x4_trans(f.b[j], stage + A_BYTES + Swizzle<BN / CHUNK>::at(row, chunk));
      }
    }
  }

  static __device__ __forceinline__ void multiply(Accumulators& acc, const Fragments& f) {
    if constexpr (TF32) {
      multiply_tf32(acc, f);
    } else {
#pragma unroll
      for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int j = 0; j < NI; ++j)
          ptx::mma_m16n8k16(acc[i][j], f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1],
                            T{});
    }
  }

  static __device__ __forceinline__ u32 large(u32 x) {
    return ptx::tf32_from_float(__uint_as_float(x));
  }
  // What `large` left over, itself rounded to TF32.
  static __device__ __forceinline__ u32 small(u32 x, u32 large) {
    return ptx::tf32_from_float(__uint_as_float(x) - __uint_as_float(large));
  }

  // The tensor core's own accumulation truncates: sums of one k step go to float registers by
  // ordinary additions where SPLIT asks for the accuracy of float.
  static __device__ __forceinline__ void multiply_tf32(Accumulators& acc, const Fragments& f) {
    u32 b_large[NI][2], b_small[NI][2];
#pragma unroll
    for (int j = 0; j < NI; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const u32 value = f.b[j / 2][j % 2 * 2 + e];
        b_large[j][e] = large(value);
        if constexpr (SPLIT) b_small[j][e] = small(value, b_large[j][e]);
      }
#pragma unroll
    for (int i = 0; i < MI; ++i) {
      u32 a_large[4], a_small[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        a_large[e] = large(f.a[i][e]);
        if constexpr (SPLIT) a_small[e] = small(f.a[i][e], a_large[e]);
      }
#pragma unroll
      for (int j = 0; j < NI; ++j) {
        if constexpr (SPLIT) {
          float sum[4] = {0.f, 0.f, 0.f, 0.f};
          ptx::mma_m16n8k8_tf32(sum, a_small, b_large[j][0], b_large[j][1]);
          ptx::mma_m16n8k8_tf32(sum, a_large, b_small[j][0], b_small[j][1]);
          ptx::mma_m16n8k8_tf32(sum, a_large, b_large[j][0], b_large[j][1]);
#pragma unroll
          for (int e = 0; e < 4; ++e) acc[i][j][e] += sum[e];
        } else {
          ptx::mma_m16n8k8_tf32(acc[i][j], a_large, b_large[j][0], b_large[j][1]);
        }
      }
    }
  }
};

}  // namespace gemm_core
