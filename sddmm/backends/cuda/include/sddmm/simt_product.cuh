// The product of a 64 x 64 tile of float weights and 64 rows of the dense operand, both in shared
// memory, by fused multiply-adds of floats on CUDA cores.
#pragma once

#include "gemm_core/outer_product.cuh"
#include "gemm_core/swizzle.cuh"
#include "sddmm/tile_weights.cuh"

namespace sddmm {

// X is 64 rows of COLUMNS elements of T. BY_COLUMN: lines of the tile are columns of W. Two warps
// multiply the first 32 columns of W and two the others, each warp half of the rows: a thread then has
// eight rows of sums and not four, and loads less for each multiply-add. Its rows and columns are
// groups of 16 bytes. Lanes i and i ^ 1 read the same columns of X, and lanes i and i ^ 2 the same rows
// of W: shared memory then serves a load of 16 bytes a lane in two clocks, else in four.
template <class T, int COLUMNS, bool BY_COLUMN>
struct SimtProduct {
  static constexpr int SIDE = TILE_SIDE, ROWS = 8, GROUP_X = 16 / sizeof(T);
  static constexpr int THREAD_COLUMNS = COLUMNS / 8, K = TILE_SIDE / 2, THREADS = 128;
  static constexpr int PARTS = 4, PART_K = K / PARTS;
  static constexpr int COUNT = TILE_SIDE * COLUMNS / THREADS;
  static_assert(THREAD_COLUMNS % GROUP_X == 0, "whole groups");
  static_assert(TILE_SIDE * COLUMNS * 4 <= 2 * ColumnTile::BYTES, "sums fit where weights were");
  using Tile = ColumnTile;
  using LayoutX = gemm_core::Padded<T, COLUMNS, 0>;
  template <class W>
  using Lines = FloatLines<W, 16 / PARTS, BY_COLUMN>;
  using Accumulators = float[ROWS][THREAD_COLUMNS];

  // sums += W X for one part of the columns of W. weights, dense: where the tiles are in shared
  // memory.
  static __device__ __forceinline__ void add(Accumulators& sums, const unsigned char* weights,
                                             const unsigned char* dense, int part) {
    const int first = half() * K + part * PART_K;
#pragma unroll
    for (int k = first; k < first + PART_K; ++k) {
      float w[ROWS], x[THREAD_COLUMNS];
      load_w(w, weights, k);
      load_x(x, dense, k);
      gemm_core::add_outer_product(sums, w, x);
    }
  }
  // Adds the sums of both halves of the threads; `sums` then has those that for_each visits. shared:
  // where both tiles of weights were.
  static __device__ __forceinline__ void merge(Accumulators& sums, unsigned char* shared) {
    float* const merged = reinterpret_cast<float*>(shared);
    __syncthreads();  // all have multiplied the last tile
    if (half() == 1) for_each_group(sums, merged, [](float4& four, float4 own) { four = own; });
    __syncthreads();
    if (half() == 0) {
      for_each_group(sums, merged, [](float4& four, float4 own) {
        four.x += own.x, four.y += own.y, four.z += own.z, four.w += own.w;
      });
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < COUNT; ++e)
      sums[e / THREAD_COLUMNS][e % THREAD_COLUMNS] = merged[threadIdx.x + e * THREADS];
  }
  // Calls visit(row, column, sum) for this thread's sums, after they are merged.
  template <class Visit>
  static __device__ __forceinline__ void for_each(const Accumulators& sums, const Visit& visit) {
#pragma unroll
    for (int e = 0; e < COUNT; ++e) {
      const int at = threadIdx.x + e * THREADS;
      visit(at / COLUMNS, at % COLUMNS, sums[e / THREAD_COLUMNS][e % THREAD_COLUMNS]);
    }
  }

 private:
  // Calls visit(four merged sums, this thread's) for each of its groups of four columns.
  template <class Visit>
  static __device__ __forceinline__ void for_each_group(const Accumulators& sums, float* merged,
                                                        const Visit& visit) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
      for (int j = 0; j < THREAD_COLUMNS; j += 4)
        visit(*reinterpret_cast<float4*>(merged + row_of(i) * COLUMNS + column_of(j)),
              float4{sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]});
  }
  // Which half of the columns of W this thread multiplies.
  static __device__ __forceinline__ int half() { return threadIdx.x / 64; }
  // The row of sums[i], and the column of sums[][j].
  static __device__ __forceinline__ int row_of(int i) {
    const int group = threadIdx.x % 32 / 16 * 2 + threadIdx.x % 2;
    return threadIdx.x / 32 % 2 * 32 + i / 4 * 16 + group * 4 + i % 4;
  }
  static __device__ __forceinline__ int column_of(int j) {
    const int group = threadIdx.x / 2 % 8;
    return j / GROUP_X * 8 * GROUP_X + group * GROUP_X + j % GROUP_X;
  }

  // Loads w[i] = W[row_of(i)][k].
  static __device__ __forceinline__ void load_w(float (&w)[ROWS], const unsigned char* weights,
                                                int k) {
#pragma unroll
    for (int i = 0; i < ROWS; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(weights + Tile::offset(k, row_of(i)));
      w[i] = four.x, w[i + 1] = four.y, w[i + 2] = four.z, w[i + 3] = four.w;
    }
  }
  // Loads x[j] = X[k][column_of(j)].
  static __device__ __forceinline__ void load_x(float (&x)[THREAD_COLUMNS],
                                                const unsigned char* dense, int k) {
    struct alignas(16) Group {
      T x[GROUP_X];
    };
#pragma unroll
    for (int j = 0; j < THREAD_COLUMNS; j += GROUP_X) {
      const Group group = *reinterpret_cast<const Group*>(
          dense + (k * COLUMNS + column_of(j)) * static_cast<int>(sizeof(T)));
#pragma unroll
      for (int e = 0; e < GROUP_X; ++e) x[j + e] = widened(group.x[e]);
    }
  }
};

}  // namespace sddmm
