// The product of a 16 x 16 tile of weights and 16 rows of the dense operand, both in shared memory, by
// a single warp: of half weights by mma.sync, of others by fused multiply-adds of floats.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/outer_product.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/ldmatrix.cuh"
#include "gemm_core/ptx/mma.cuh"
#include "gemm_core/swizzle.cuh"
#include "sddmm/tile_weights.cuh"

namespace sddmm {

constexpr int SMALL_SIDE = 16;

// All lines of a tile in registers: lane i has the weights at position i % 16 of lines i / 16,
// i / 16 + 2 and so on.
template <class W>
struct SmallLines {
  static constexpr int LINES = SMALL_SIDE, STEPS = LINES / 2;
  struct NoFactors {};
  typename W::Value values[STEPS];
  typename gemm_core::Select<W::HAS_FACTORS, typename W::Factor[STEPS], NoFactors>::type factors;

  __device__ __forceinline__ void load(const W& weights, const WarpLines& lines, int) {
    const int own = position();
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int begin = __shfl_sync(FULL_MASK, lines.begin, line(i));
      const u32 mask = __shfl_sync(FULL_MASK, lines.low, line(i));
      values[i] = typename W::Value{};
      if constexpr (W::HAS_FACTORS) factors[i] = typename W::Factor{};
      if (mask >> own & 1) {
        const int at = weights.position(begin + __popc(mask & ((1u << own) - 1)));
        values[i] = weights.values[at];
        if constexpr (W::HAS_FACTORS) factors[i] = weights.factors[at];
      }
    }
  }

  template <class Tile>
  __device__ __forceinline__ void store(const W&, unsigned char* tile, int) const {
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      unsigned char* const to = tile + Tile::offset(line(i), position());
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
  static __device__ __forceinline__ int position() { return threadIdx.x % SMALL_SIDE; }
  static __device__ __forceinline__ int line(int i) {
    return 2 * i + static_cast<int>(threadIdx.x) / SMALL_SIDE;
  }
};

// Half weights, line by line, in the swizzle that ldmatrix reads.
struct SmallHalfTile {
  static constexpr bool HAS_FLOATS = false;
  static constexpr int BYTES = SMALL_SIDE * SMALL_SIDE * 2;
  using Layout = gemm_core::Swizzle<SMALL_SIDE / 8>;

  static __device__ __forceinline__ int offset(int line, int position) {
    return Layout::offset(line, position / 8) + position % 8 * 2;
  }
};

// Float weights, column of W by column, with four elements between them as in ColumnTile. BY_COLUMN:
// lines are columns of W.
template <bool BY_COLUMN>
struct SmallFloatTile {
  static constexpr bool HAS_FLOATS = true;
  using Layout = gemm_core::Padded<float, SMALL_SIDE, 4>;
  static constexpr int BYTES = SMALL_SIDE * Layout::PITCH * 4;

  static __device__ __forceinline__ int offset(int line, int position) {
    const int column = BY_COLUMN ? line : position, row = BY_COLUMN ? position : line;
    return (column * Layout::PITCH + row) * 4;
  }
};

// What both products share.
template <class Sums>
struct SmallProduct {
  static constexpr int SIDE = SMALL_SIDE, THREADS = 32, PARTS = 1;
  template <class W>
  using Lines = SmallLines<W>;
  using Accumulators = Sums;

  // Every thread has sums of its own.
  static __device__ __forceinline__ void merge(Accumulators&, unsigned char*) {}
};

// X is 16 rows of COLUMNS halves T. BY_COLUMN: lines of the tile are columns of W, which ldmatrix
// transposes.
template <class T, int COLUMNS, bool BY_COLUMN>
struct SmallHalfProduct : SmallProduct<float[COLUMNS / 8][4]> {
  using Accumulators = float[COLUMNS / 8][4];
  using Tile = SmallHalfTile;
  using LayoutX = gemm_core::Swizzle<COLUMNS / 8>;

  // sums += W X. weights, dense: where the tiles are in shared memory.
  static __device__ __forceinline__ void add(Accumulators& sums, const unsigned char* weights,
                                             const unsigned char* dense, int) {
    u32 a[4];
    const gemm_core::fragment::Position own = gemm_core::fragment::ldmatrix_a(threadIdx.x);
    if constexpr (BY_COLUMN) {
      const gemm_core::fragment::Position turned = gemm_core::fragment::ldmatrix_b(threadIdx.x);
      gemm_core::ptx::ldmatrix_x4_trans(a, address(weights, turned));
    } else {
      gemm_core::ptx::ldmatrix_x4(a, address(weights, own));
    }
    const u32 x = gemm_core::ptx::shared_address(dense);
    const u32 first = LayoutX::offset(own.row, own.column / 8);
#pragma unroll
    for (int j = 0; j < COLUMNS / 16; ++j) {
      u32 b[4];
      gemm_core::ptx::ldmatrix_x4_trans(b, x + (first ^ 32 * j));
      gemm_core::ptx::mma_m16n8k16(sums[2 * j], a, b[0], b[1], T{});
      gemm_core::ptx::mma_m16n8k16(sums[2 * j + 1], a, b[2], b[3], T{});
    }
  }
  // Calls visit(row, column, sum) for this thread's sums.
  template <class Visit>
  static __device__ __forceinline__ void for_each(const Accumulators& sums, const Visit& visit) {
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const gemm_core::fragment::Position at = gemm_core::fragment::mma_c(threadIdx.x, e);
        visit(at.row, 8 * j + at.column, sums[j][e]);
      }
  }

 private:
  static __device__ __forceinline__ u32 address(const unsigned char* weights,
                                                gemm_core::fragment::Position at) {
    return gemm_core::ptx::shared_address(weights) + Tile::Layout::offset(at.row, at.column / 8);
  }
};

// X is 16 rows of COLUMNS elements of T. Lanes i and i ^ 1 have the two halves of the rows, and read
// the same columns of X.
template <class T, int COLUMNS, bool BY_COLUMN>
struct SmallSimtProduct : SmallProduct<float[SMALL_SIDE / 2][COLUMNS / 16]> {
  static constexpr int ROWS = SMALL_SIDE / 2, THREAD_COLUMNS = COLUMNS / 16;
  static_assert(THREAD_COLUMNS == 4, "a group of columns is one load");
  using Accumulators = float[ROWS][THREAD_COLUMNS];
  using Tile = SmallFloatTile<BY_COLUMN>;
  using LayoutX = gemm_core::Padded<T, COLUMNS, 0>;

  // sums += W X. weights, dense: where the tiles are in shared memory.
  static __device__ __forceinline__ void add(Accumulators& sums, const unsigned char* weights,
                                             const unsigned char* dense, int) {
    struct alignas(4 * sizeof(T)) Group {
      T x[THREAD_COLUMNS];
    };
    const auto* const rows = reinterpret_cast<const float4*>(weights + 4 * first_row());
    const auto* const columns = reinterpret_cast<const Group*>(dense) + threadIdx.x / 2;
#pragma unroll
    for (int k = 0; k < SMALL_SIDE; ++k) {
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

}  // namespace sddmm
