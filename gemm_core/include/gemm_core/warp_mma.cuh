// What one warp does with mma.sync: fragments of its WM x WN tile from swizzled shared memory, and
// their product.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/ldmatrix.cuh"
#include "gemm_core/ptx/mma.cuh"
#include "gemm_core/swizzle.cuh"
#include "gemm_core/tf32.cuh"

namespace gemm_core {

// T: f16, bf16, or float by TF32. In shared memory lie A as BM rows of BK, and B as BN rows of BK if
// B_ROWS_ARE_N, else as BK rows of BN. SPLIT (float only) is 3xTF32: each operand the sum of a large
// and a small TF32 number, three of the four products formed.
template <class T, int BN, int BK, int WM, int WN, bool B_ROWS_ARE_N, bool SPLIT>
struct WarpMma {
  static constexpr bool TF32 = sizeof(T) == 4;
  static_assert(!TF32 || B_ROWS_ARE_N, "ldmatrix cannot transpose 32-bit elements");
  static_assert(TF32 || !SPLIT, "only float operands are split");

  // A k step is 32 bytes of a row: two 16-byte chunks, one ldmatrix.x4 for 16 rows.
  static constexpr int KSTEP = 32 / sizeof(T), CHUNK = 16 / sizeof(T), STEPS = BK / KSTEP;
  static constexpr int MI = WM / 16, NI = WN / 8;
  static_assert(WM % 16 == 0 && WN % 16 == 0 && (WN & (WN - 1)) == 0, "");
  using LayoutA = Swizzle<BK / CHUNK>;
  using LayoutB = Swizzle<(B_ROWS_ARE_N ? BK : BN) / CHUNK>;

  // acc[i][j] is the C fragment (fragments.py: mma_m16n8k16_c) of rows 16 i and columns 8 j of the
  // warp's tile.
  using Accumulators = float[MI][NI][4];

  struct Fragments {
    u32 a[MI][4];
    u32 b[NI / 2][4];  // two n-blocks each: {k low, k high} of the first, then of the second
  };

  // Shared addresses, in stage 0, of what this lane passes to its first ldmatrix of either operand.
  // All others are an XOR or a constant away: steps are even chunks, and rows 16 apart swizzle alike.
  u32 from_a, from_b;

  // tile_a, tile_b: where the tiles begin, in shared memory. warp_row, warp_column: of the warp's.
  __device__ __forceinline__ WarpMma(u32 tile_a, u32 tile_b, int warp_row, int warp_column) {
    const int lane = threadIdx.x % 32;
    const fragment::Position in_a = fragment::ldmatrix_a(lane);
    from_a = tile_a + LayoutA::at(warp_row + in_a.row, in_a.column / 8);
    if constexpr (B_ROWS_ARE_N) {
      const fragment::Position in_b = fragment::ldmatrix_b(lane);
      from_b = tile_b + LayoutB::at(warp_column + in_b.row, in_b.column / 8);
    } else {
      from_b = tile_b + LayoutB::at(in_a.row, warp_column / CHUNK + in_a.column / 8);
    }
  }

  __device__ __forceinline__ void load(Fragments& f, u32 stage, int step) const {
    constexpr int rows_16 = 16 * BK * sizeof(T);
#pragma unroll
    for (int i = 0; i < MI; ++i)
      ptx::ldmatrix_x4(f.a[i], (from_a + stage ^ 32 * step) + rows_16 * i);
#pragma unroll
    for (int j = 0; j < NI / 2; ++j) {
      if constexpr (B_ROWS_ARE_N) {
        ptx::ldmatrix_x4(f.b[j], (from_b + stage ^ 32 * step) + rows_16 * j);
      } else {
        constexpr int step_bytes = KSTEP * BN * sizeof(T);
        ptx::ldmatrix_x4_trans(f.b[j], (from_b + stage ^ 32 * j) + step_bytes * step);
      }
    }
  }

  __device__ __forceinline__ void multiply(Accumulators& acc, const Fragments& f) const {
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

 private:
  // x as one number of TF32, or as two if SPLIT.
  static __device__ __forceinline__ void convert(u32 x, u32& large, u32& small) {
    if constexpr (SPLIT) {
      split_tf32(__uint_as_float(x), large, small);
    } else {
      large = tf32_from_float(__uint_as_float(x));
    }
  }

  // The tensor core's own accumulation truncates: sums of one k step go to float registers by
  // ordinary additions where SPLIT asks for the accuracy of float.
  static __device__ __forceinline__ void multiply_tf32(Accumulators& acc, const Fragments& f) {
    u32 b_large[NI][2], b_small[NI][2];
#pragma unroll
    for (int j = 0; j < NI; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        convert(f.b[j / 2][j % 2 * 2 + e], b_large[j][e], b_small[j][e]);
#pragma unroll
    for (int i = 0; i < MI; ++i) {
      u32 a_large[4], a_small[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) convert(f.a[i][e], a_large[e], a_small[e]);
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
