// The product of a tile of weights of 16 or 32 rows and columns, and as many rows of the dense operand,
// both in shared memory, by a single warp: of half weights by mma.sync, of others by fused multiply-adds.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/outer_product.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/ldmatrix.cuh"
#include "gemm_core/ptx/mma.cuh"
#include "gemm_core/swizzle.cuh"
#include "sddmm/tile_weights.cuh"

namespace sddmm {

// 16 lines of SIDE positions in registers: lane i has the weights at position i % SIDE of several.
template <class W, int SIDE>
struct ShortLines {
  static constexpr int LINES = 16, COUNT = LINES * SIDE / 32;
  struct NoFactors {};
  typename W::Value values[COUNT];
  typename gemm_core::Select<W::HAS_FACTORS, typename W::Factor[COUNT], NoFactors>::type factors;

  // Loads the lines from line `first` of the tile on.
  __device__ __forceinline__ void load(const W& weights, const WarpLines& lines, int first) {
    const int own = position();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int begin = __shfl_sync(FULL_MASK, lines.begin, first + line(i));
      const u32 mask = __shfl_sync(FULL_MASK, lines.low, first + line(i));
      values[i] = typename W::Value{};
      if constexpr (W::HAS_FACTORS) factors[i] = typename W::Factor{};
      if (mask >> own & 1) {
        const int at = weights.position(begin + __popc(mask & ((1u << own) - 1)));
        values[i] = weights.values[at];
        if constexpr (W::HAS_FACTORS) factors[i] = weights.factors[at];
      }
    }
  }

  // Stores the lines to a tile, from line `first` of it on.
  template <class Tile>
  __device__ __forceinline__ void store(const W&, unsigned char* tile, int first) const {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      unsigned char* const to = tile + Tile::offset(first + line(i), position());
      if constexpr (Tile::HAS_FLOATS) {
        float weight = widened(values[i]);
        if constexpr (W::HAS_FACTORS) weight *= widened(factors[i]);
        *reinterpret_cast<float*>(to) = weight;
      } else {
        *reinterpret_cast<typename W::Value*>(to) = values[i];
      }
    }
  }

 private:
  static __device__ __forceinline__ int position() { return threadIdx.x % SIDE; }
  static __device__ __forceinline__ int line(int i) { return i * (32 / SIDE) + threadIdx.x / SIDE; }
};

// Half weights, line by line, in the swizzle that ldmatrix reads.
template <int SIDE>
struct ShortHalfTile {
  static constexpr bool HAS_FLOATS = false;
  static constexpr int BYTES = SIDE * SIDE * 2;
  using Layout = gemm_core::Swizzle<SIDE / 8>;

  static __device__ __forceinline__ int offset(int line, int position) {
    return Layout::offset(line, position / 8) + position % 8 * 2;
  }
};

// Float weights, column of W by column, with four elements between them as in ColumnTile. BY_COLUMN:
// lines are columns of W.
template <int SIDE, bool BY_COLUMN>
struct ShortFloatTile {
  static constexpr bool HAS_FLOATS = true;
  using Layout = gemm_core::Padded<float, SIDE, 4>;
  static constexpr int BYTES = SIDE * Layout::PITCH * 4;

  static __device__ __forceinline__ int offset(int line, int position) {
    const int column = BY_COLUMN ? line : position, row = BY_COLUMN ? position : line;
    return (column * Layout::PITCH + row) * 4;
  }
};

// X is SIDE_ rows of COLUMNS halves T. BY_COLUMN: lines of the tile are columns of W, which ldmatrix
// transposes. The 16 columns of W of a part are multiplied at a time.
template <int SIDE_, class T, int COLUMNS, bool BY_COLUMN>
struct WarpHalfProduct {
  static constexpr int SIDE = SIDE_, THREADS = 32, PARTS = SIDE / 16, FRAGMENTS_M = SIDE / 16;
  using Accumulators = float[FRAGMENTS_M][COLUMNS / 8][4];
  using Tile = ShortHalfTile<SIDE>;
  using LayoutX = gemm_core::Swizzle<COLUMNS / 8>;
  template <class W>
  using Lines = ShortLines<W, SIDE>;

  // sums += W X for one part of the columns of W. weights, dense: where the tiles are in shared
  // memory.
  static __device__ __forceinline__ void add(Accumulators& sums, const unsigned char* weights,
                                             const unsigned char* dense, int part) {
    u32 a[FRAGMENTS_M][4];
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i) load_weights(a[i], weights, 16 * i, 16 * part);
    const gemm_core::fragment::Position own = gemm_core::fragment::ldmatrix_a(threadIdx.x);
    const u32 x = gemm_core::ptx::shared_address(dense);
    const u32 first = LayoutX::offset(16 * part + own.row, own.column / 8);
#pragma unroll
    for (int j = 0; j < COLUMNS / 16; ++j) {
      u32 b[4];
      gemm_core::ptx::ldmatrix_x4_trans(b, x + (first ^ 32 * j));
#pragma unroll
      for (int i = 0; i < FRAGMENTS_M; ++i) {
        gemm_core::ptx::mma_m16n8k16(sums[i][2 * j], a[i], b[0], b[1], T{});
        gemm_core::ptx::mma_m16n8k16(sums[i][2 * j + 1], a[i], b[2], b[3], T{});
      }
    }
  }
  // Every thread has sums of its own.
  static __device__ __forceinline__ void merge(Accumulators&, unsigned char*) {}
  // Calls visit(row, column, sum) for this thread's sums.
  template <class Visit>
  static __device__ __forceinline__ void for_each(const Accumulators& sums, const Visit& visit) {
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i)
#pragma unroll
      for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const gemm_core::fragment::Position at = gemm_core::fragment::mma_c(threadIdx.x, e);
          visit(16 * i + at.row, 8 * j + at.column, sums[i][j][e]);
        }
  }

 private:
  // Loads the fragment of 16 rows and 16 columns of W from (row, column) on.
  static __device__ __forceinline__ void load_weights(u32 (&a)[4], const unsigned char* weights,
                                                      int row, int column) {
    const u32 from = gemm_core::ptx::shared_address(weights);
    if constexpr (BY_COLUMN) {
      const gemm_core::fragment::Position own = gemm_core::fragment::ldmatrix_b(threadIdx.x);
      gemm_core::ptx::ldmatrix_x4_trans(
          a, from + Tile::Layout::offset(column + own.row, (row + own.column) / 8));
    } else {
      const gemm_core::fragment::Position own = gemm_core::fragment::ldmatrix_a(threadIdx.x);
      gemm_core::ptx::ldmatrix_x4(
          a, from + Tile::Layout::offset(row + own.row, (column + own.column) / 8));
    }
  }
};

// X is 16 rows of COLUMNS elements of T, a multiple of 16. Lanes i and i ^ 1 have the two halves of the
// rows, and read the same columns of X.
template <int SIDE_, class T, int COLUMNS, bool BY_COLUMN>
struct WarpSimtProduct {
  static constexpr int SIDE = SIDE_, THREADS = 32, PARTS = 1;
  static constexpr int ROWS = SIDE / 2, THREAD_COLUMNS = COLUMNS / 16;
  static_assert(SIDE == 16, "rows are two loads");
  using Accumulators = float[ROWS][THREAD_COLUMNS];
  using Tile = ShortFloatTile<SIDE, BY_COLUMN>;
  using LayoutX = gemm_core::Padded<T, COLUMNS, 0>;
  template <class W>
  using Lines = ShortLines<W, SIDE>;

  // sums += W X. weights, dense: where the tiles are in shared memory.
  static __device__ __forceinline__ void add(Accumulators& sums, const unsigned char* weights,
                                             const unsigned char* dense, int) {
    // One load, or three of elements.
    struct alignas(THREAD_COLUMNS == 3 ? sizeof(T) : sizeof(T) * THREAD_COLUMNS) Group {
      T x[THREAD_COLUMNS];
    };
    const auto* const rows = reinterpret_cast<const float4*>(weights + 4 * first_row());
    const auto* const columns = reinterpret_cast<const Group*>(dense) + threadIdx.x / 2;
#pragma unroll
    for (int k = 0; k < SIDE; ++k) {
      const float4* const own = rows + k * (Tile::Layout::PITCH / 4);
      const float4 low = own[0], high = own[1];
      const float w[ROWS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      const Group group = columns[k * (COLUMNS / THREAD_COLUMNS)];
      float x[THREAD_COLUMNS];
#pragma unroll
      for (int e = 0; e < THREAD_COLUMNS; ++e) x[e] = widened(group.x[e]);
      gemm_core::add_outer_product(sums, w, x);
    }
  }
  // Every thread has sums of its own.
  static __device__ __forceinline__ void merge(Accumulators&, unsigned char*) {}
  // Calls visit(row, column, sum) for this thread's sums.
  template <class Visit>
  static __device__ __forceinline__ void for_each(const Accumulators& sums, const Visit& visit) {
    const int column = static_cast<int>(threadIdx.x) / 2 * THREAD_COLUMNS;
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
      for (int j = 0; j < THREAD_COLUMNS; ++j) visit(first_row() + i, column + j, sums[i][j]);
  }

 private:
  static __device__ __forceinline__ int first_row() { return threadIdx.x % 2 * ROWS; }
};

template <class T, int COLUMNS, bool BY_COLUMN>
using HalfProduct16 = WarpHalfProduct<16, T, COLUMNS, BY_COLUMN>;
template <class T, int COLUMNS, bool BY_COLUMN>
using HalfProduct32 = WarpHalfProduct<32, T, COLUMNS, BY_COLUMN>;
template <class T, int COLUMNS, bool BY_COLUMN>
using SimtProduct16 = WarpSimtProduct<16, T, COLUMNS, BY_COLUMN>;

}  // namespace sddmm
