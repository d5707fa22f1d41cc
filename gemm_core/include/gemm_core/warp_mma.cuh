// The part of one warp in an mma.sync main loop: loads the fragments of its tile from swizzled
// shared memory and multiplies them.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/ldmatrix.cuh"
#include "gemm_core/ptx/mma.cuh"
#include "gemm_core/swizzle.cuh"
#include "gemm_core/tf32.cuh"

namespace gemm_core {

// T: f16, bf16, or float by TF32. Shared memory holds A as BM rows of BK, and B as BN rows of BK if
// B_ROWS_ARE_N, else as BK rows of BN. SPLIT_TF32 (float only) is 3xTF32: each operand is the sum
// of a large and a small TF32 number, and three of the four products are formed.
template <class T, int BN, int BK, int WARP_M, int WARP_N, bool B_ROWS_ARE_N, bool SPLIT_TF32>
struct WarpMma {
  static constexpr bool TF32 = sizeof(T) == 4;
  static_assert(!TF32 || B_ROWS_ARE_N, "ldmatrix cannot transpose 32-bit elements");
  static_assert(TF32 || !SPLIT_TF32, "only float operands are split");

  // A k step is 32 bytes of a row: two 16-byte chunks, one ldmatrix.x4 for 16 rows.
  static constexpr int STEP_K = 32 / sizeof(T), CHUNK = 16 / sizeof(T), K_STEPS = BK / STEP_K;
  static constexpr int FRAGMENTS_M = WARP_M / 16, FRAGMENTS_N = WARP_N / 8;
  static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0 && (WARP_N & (WARP_N - 1)) == 0, "");
  using LayoutA = Swizzle<BK / CHUNK>;
  using LayoutB = Swizzle<(B_ROWS_ARE_N ? BK : BN) / CHUNK>;

  // sums[i][j] is the C fragment (fragments.py: mma_m16n8k16_c) of rows 16 i and columns 8 j of the
  // warp's tile.
  using Accumulators = float[FRAGMENTS_M][FRAGMENTS_N][4];

  struct Fragments {
    u32 a[FRAGMENTS_M][4];
    u32 b[FRAGMENTS_N / 2][4];  // of two n blocks: {k low, k high} of the first, then of the second
  };

  // The shared addresses that this lane passes to its first ldmatrix of each operand, in stage 0.
  // All others follow by an XOR or by adding a constant: a k step starts at an even chunk, and rows
  // 16 apart have the same swizzle.
  u32 address_a, address_b;

  // tile_a, tile_b: shared addresses of the tiles. warp_row, warp_column: where the warp's tile
  // starts.
  __device__ __forceinline__ WarpMma(u32 tile_a, u32 tile_b, int warp_row, int warp_column) {
    const int lane = threadIdx.x % 32;
    const fragment::Position lane_a = fragment::ldmatrix_a(lane);
    address_a = tile_a + LayoutA::offset(warp_row + lane_a.row, lane_a.column / 8);
    if constexpr (B_ROWS_ARE_N) {
      const fragment::Position lane_b = fragment::ldmatrix_b(lane);
      address_b = tile_b + LayoutB::offset(warp_column + lane_b.row, lane_b.column / 8);
    } else {
      address_b = tile_b + LayoutB::offset(lane_a.row, warp_column / CHUNK + lane_a.column / 8);
    }
  }

  __device__ __forceinline__ void load(Fragments& f, u32 stage, int k_step) const {
    constexpr int rows_16_bytes = 16 * BK * sizeof(T);
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i)
      ptx::ldmatrix_x4(f.a[i], (address_a + stage ^ 32 * k_step) + rows_16_bytes * i);
#pragma unroll
    for (int j = 0; j < FRAGMENTS_N / 2; ++j) {
      if constexpr (B_ROWS_ARE_N) {
        ptx::ldmatrix_x4(f.b[j], (address_b + stage ^ 32 * k_step) + rows_16_bytes * j);
      } else {
        constexpr int step_bytes = STEP_K * BN * sizeof(T);
        ptx::ldmatrix_x4_trans(f.b[j], (address_b + stage ^ 32 * j) + step_bytes * k_step);
      }
    }
  }

  __device__ __forceinline__ void multiply(Accumulators& sums, const Fragments& f) const {
    if constexpr (TF32) {
      multiply_tf32(sums, f);
    } else {
#pragma unroll
      for (int i = 0; i < FRAGMENTS_M; ++i)
#pragma unroll
        for (int j = 0; j < FRAGMENTS_N; ++j)
          ptx::mma_m16n8k16(sums[i][j], f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1],
                            T{});
    }
  }

 private:
  // Converts x to one TF32 number, or to two if SPLIT_TF32.
  static __device__ __forceinline__ void convert(u32 x, u32& large, u32& small) {
    if constexpr (SPLIT_TF32) {
      split_tf32(__uint_as_float(x), large, small);
    } else {
      large = tf32_from_float(__uint_as_float(x));
    }
  }

  // The accumulation of tensor cores truncates. With SPLIT_TF32 the sums of one k step are
  // therefore added to float registers by ordinary additions, which gives float's accuracy.
  static __device__ __forceinline__ void multiply_tf32(Accumulators& sums, const Fragments& f) {
    u32 b_large[FRAGMENTS_N][2], b_small[FRAGMENTS_N][2];
#pragma unroll
    for (int j = 0; j < FRAGMENTS_N; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        convert(f.b[j / 2][j % 2 * 2 + e], b_large[j][e], b_small[j][e]);
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i) {
      u32 a_large[4], a_small[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) convert(f.a[i][e], a_large[e], a_small[e]);
#pragma unroll
      for (int j = 0; j < FRAGMENTS_N; ++j) {
        if constexpr (SPLIT_TF32) {
          float partial[4] = {0.f, 0.f, 0.f, 0.f};
          ptx::mma_m16n8k8_tf32(partial, a_small, b_large[j][0], b_large[j][1]);
          ptx::mma_m16n8k8_tf32(partial, a_large, b_small[j][0], b_small[j][1]);
          ptx::mma_m16n8k8_tf32(partial, a_large, b_large[j][0], b_large[j][1]);
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][j][e] += partial[e];
        } else {
          ptx::mma_m16n8k8_tf32(sums[i][j], a_large, b_large[j][0], b_large[j][1]);
        }
      }
    }
  }
};

}  // namespace gemm_core
