// The product of a 64 x 64 tile of weights and 64 rows of half X, both in shared memory, by mma.sync:
// of half weights, or of products of two halves as sums of TF32 numbers.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/ldmatrix.cuh"
#include "gemm_core/ptx/mma.cuh"
#include "sddmm/tile_weights.cuh"

namespace sddmm {

namespace fragment = gemm_core::fragment;
namespace ptx = gemm_core::ptx;

// What both kinds of weights share. Each of 2 x 2 warps has 32 rows and half of COLUMNS columns.
// X is 64 rows of COLUMNS elements of T, which ldmatrix transposes.
template <class T, int COLUMNS>
struct WarpTile {
  static constexpr int SIDE = TILE_SIDE, THREADS = 128;
  static constexpr int WARP_ROWS = 32, WARP_COLUMNS = COLUMNS / 2;
  static constexpr int FRAGMENTS_M = WARP_ROWS / 16, FRAGMENTS_N = WARP_COLUMNS / 8;
  static constexpr int K_STEPS = TILE_SIDE / 16;
  using LayoutX = gemm_core::Swizzle<COLUMNS / 8>;  // of halves
  using Accumulators = float[FRAGMENTS_M][FRAGMENTS_N][4];

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int row() { return threadIdx.x / 64 * WARP_ROWS; }
  static __device__ __forceinline__ int column() { return threadIdx.x / 32 % 2 * WARP_COLUMNS; }

  // The byte of X from which this lane's first ldmatrix reads.
  static __device__ __forceinline__ u32 first_x() {
    const fragment::Position own = fragment::ldmatrix_a(lane());
    return LayoutX::offset(own.row, (column() + own.column) / 8);
  }
  // Calls visit(row, column, sum) for this thread's sums.
  template <class Visit>
  static __device__ __forceinline__ void for_each(const Accumulators& sums, const Visit& visit) {
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i)
#pragma unroll
      for (int j = 0; j < FRAGMENTS_N; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const fragment::Position at = fragment::mma_c(lane(), e);
          visit(row() + 16 * i + at.row, column() + 8 * j + at.column, sums[i][j][e]);
        }
  }
  // Every thread has sums of its own.
  static __device__ __forceinline__ void merge(Accumulators&, unsigned char*) {}

  // Loads rows 16 k_step .. + 15 of X, two fragments of eight columns at a time.
  static __device__ __forceinline__ void load_x(u32 (&b)[FRAGMENTS_N / 2][4], u32 first,
                                                int k_step) {
#pragma unroll
    for (int j = 0; j < FRAGMENTS_N / 2; ++j)
      ptx::ldmatrix_x4_trans(b[j], (first ^ 32 * j) + 16 * COLUMNS * 2 * k_step);
  }
};

// The product of half weights. BY_COLUMN: lines of the tile are columns of W, which ldmatrix
// transposes.
template <class T, int COLUMNS, bool BY_COLUMN>
struct HalfProduct : WarpTile<T, COLUMNS> {
  using Base = WarpTile<T, COLUMNS>;
  using Tile = HalfTile<T>;
  static constexpr int PARTS = 1;
  template <class W>
  using Lines = HalfLines<W, 16 / PARTS>;
  struct Fragments {
    u32 a[Base::FRAGMENTS_M][4], b[Base::FRAGMENTS_N / 2][4];
  };

  // sums += W X. weights, dense: where the tiles are in shared memory.
  static __device__ __forceinline__ void add(typename Base::Accumulators& sums,
                                             const unsigned char* weights,
                                             const unsigned char* dense, int) {
    const u32 first_a = ptx::shared_address(weights) + first_weight();
    const u32 first_x = ptx::shared_address(dense) + Base::first_x();
    Fragments f[2];
    load(f[0], first_a, first_x, 0);
#pragma unroll
    for (int step = 0; step < Base::K_STEPS; ++step) {
      if (step + 1 < Base::K_STEPS) load(f[(step + 1) % 2], first_a, first_x, step + 1);
      const Fragments& now = f[step % 2];
#pragma unroll
      for (int i = 0; i < Base::FRAGMENTS_M; ++i)
#pragma unroll
        for (int j = 0; j < Base::FRAGMENTS_N; ++j)
          ptx::mma_m16n8k16(sums[i][j], now.a[i], now.b[j / 2][j % 2 * 2],
                            now.b[j / 2][j % 2 * 2 + 1], T{});
    }
  }

 private:
  static __device__ __forceinline__ u32 first_weight() {
    if constexpr (BY_COLUMN) {
      const fragment::Position own = fragment::ldmatrix_b(Base::lane());
      return Tile::Layout::offset(own.row, (Base::row() + own.column) / 8);
    } else {
      const fragment::Position own = fragment::ldmatrix_a(Base::lane());
      return Tile::Layout::offset(Base::row() + own.row, own.column / 8);
    }
  }
  static __device__ __forceinline__ void load(Fragments& f, u32 first_a, u32 first_x, int step) {
    constexpr int rows_16_bytes = 16 * TILE_SIDE * 2;
#pragma unroll
    for (int i = 0; i < Base::FRAGMENTS_M; ++i) {
      if constexpr (BY_COLUMN) {
        ptx::ldmatrix_x4_trans(f.a[i], (first_a ^ 32 * i) + rows_16_bytes * step);
      } else {
        ptx::ldmatrix_x4(f.a[i], (first_a ^ 32 * step) + rows_16_bytes * i);
      }
    }
    Base::load_x(f.b, first_x, step);
  }
};

// The product of weights that are products of two halves: each is the sum of two TF32 numbers, of 11
// bits each, and a half of X is one. Nothing is rounded. Sums of 16 products are added to `sums` by
// ordinary additions, as the accumulation of tensor cores truncates. Lane q has columns 2 q and
// 2 q + 1 of eight columns of W, not q and q + 4, as a half fragment of X has.
template <class T, int COLUMNS, bool BY_COLUMN>
struct Tf32Product : WarpTile<T, COLUMNS> {
  using Base = WarpTile<T, COLUMNS>;
  using Tile = FloatTile;
  static constexpr int PARTS = 4;
  template <class W>
  using Lines = HalfLines<W, 16 / PARTS>;
  static constexpr int HALVES = 2;

  // sums += W X for one part of the columns of W. weights, dense: where the tiles are in shared
  // memory.
  static __device__ __forceinline__ void add(typename Base::Accumulators& sums,
                                             const unsigned char* weights,
                                             const unsigned char* dense, int part) {
    constexpr int PART_STEPS = Base::K_STEPS / PARTS;
#pragma unroll 1
    for (int step = part * PART_STEPS; step < (part + 1) * PART_STEPS; ++step) {
      u32 high[Base::FRAGMENTS_M][HALVES][4], low[Base::FRAGMENTS_M][HALVES][4];
#pragma unroll
      for (int i = 0; i < Base::FRAGMENTS_M; ++i)
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
          load(high[i][half], low[i][half], weights, 16 * i, 16 * step + 8 * half);
      u32 b[Base::FRAGMENTS_N / 2][4];
      Base::load_x(b, ptx::shared_address(dense) + Base::first_x(), step);
#pragma unroll
      for (int j = 0; j < Base::FRAGMENTS_N; ++j) {
        u32 x[HALVES][2];
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            x[half][e] = float_bits(b[j / 2][j % 2 * 2 + half] >> 16 * e);
#pragma unroll
        for (int i = 0; i < Base::FRAGMENTS_M; ++i) {
          float partial[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
          for (int half = 0; half < HALVES; ++half)  // the smallest products first
            ptx::mma_m16n8k8_tf32(partial, low[i][half], x[half][0], x[half][1]);
#pragma unroll
          for (int half = 0; half < HALVES; ++half)
            ptx::mma_m16n8k8_tf32(partial, high[i][half], x[half][0], x[half][1]);
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][j][e] += partial[e];
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ u32 float_bits(u32 half) {
    return __float_as_uint(widened(T{static_cast<u16>(half)}));
  }
  static __device__ __forceinline__ void split(float weight, u32& high, u32& low) {
    high = __float_as_uint(weight) & 0xffffe000;
    low = __float_as_uint(weight - __uint_as_float(high));
  }
  // Loads the fragment of 16 rows and of eight columns of W from `column` on.
  static __device__ __forceinline__ void load(u32 (&high)[4], u32 (&low)[4],
                                              const unsigned char* weights, int first_row,
                                              int column) {
    const int row = Base::row() + first_row + Base::lane() / 4;
    const int k = column + Base::lane() % 4 * 2;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float2 both;
      if constexpr (BY_COLUMN) {
        both.x = *reinterpret_cast<const float*>(weights + Tile::offset(k, row + 8 * e));
        both.y = *reinterpret_cast<const float*>(weights + Tile::offset(k + 1, row + 8 * e));
      } else {
        both = *reinterpret_cast<const float2*>(weights + Tile::offset(row + 8 * e, k));
      }
      split(both.x, high[e], low[e]);
      split(both.y, high[e + 2], low[e + 2]);
    }
  }
};

}  // namespace sddmm
