// The epilogue of a tile of which only the sampled entries are stored: the block puts all sums into
// shared memory, and each thread loads those of its nonzeros.
#pragma once

#include "sddmm/value.cuh"

namespace sddmm {

// A BM x BN tile of sums in shared memory, for THREADS threads. Columns are XORed with the row, in
// groups of eight, so that storing fragments has no bank conflicts.
template <int BM, int BN, int THREADS>
struct SampledTile {
  static constexpr int BYTES = BM * BN * 4;
  // The number of threads that sample a row together, of rows that all threads sample at once, and
  // of rows that a thread samples.
  static constexpr int LANES_PER_ROW = 8, ROWS_AT_ONCE = THREADS / LANES_PER_ROW;
  static constexpr int ROWS_PER_THREAD = (BM + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;

  float* tile;

  // Stores sums of an accumulator fragment (gemm_core::store_mma and store_wmma call it).
  __device__ __forceinline__ void operator()(int row, int column, float v0, float v1) const {
    *reinterpret_cast<float2*>(tile + index(row, column)) = make_float2(v0, v1);
  }
  __device__ __forceinline__ void operator()(int row, int column, float v) const {
    tile[index(row, column)] = v;
  }

  // The nonzeros of each of a thread's rows: range[i].x .. range[i].y - 1.
  struct RowRanges {
    int2 range[ROWS_PER_THREAD];

    RowRanges() = default;
    // offsets: the entry of the tile's first row; those of the next rows follow row_stride apart.
    __device__ __forceinline__ RowRanges(const int* offsets, int row_stride, int thread) {
#pragma unroll
      for (int i = 0; i < ROWS_PER_THREAD; ++i) {
        const int row = thread / LANES_PER_ROW + i * ROWS_AT_ONCE;
        const int* const own = offsets + static_cast<i64>(row) * row_stride;
        range[i] = BM % ROWS_AT_ONCE == 0 || row < BM ? make_int2(own[0], own[1]) : make_int2(0, 0);
      }
    }
  };

  // The columns, counted in the matrix, of a thread's first DEPTH nonzeros in each of its rows.
  // They are loaded before the sums are complete, to hide the latency of the load.
  template <int DEPTH>
  struct PrefetchedColumns {
    RowRanges rows;
    const int* cols;
    int n0, thread;
    int column[ROWS_PER_THREAD][DEPTH];

    PrefetchedColumns() = default;
    __device__ __forceinline__ PrefetchedColumns(const RowRanges& rows_, const int* cols_, int n0_,
                                                 int thread_)
        : rows(rows_), cols(cols_), n0(n0_), thread(thread_) {
#pragma unroll
      for (int i = 0; i < ROWS_PER_THREAD; ++i)
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
          const int nonzero = first(i) + d * LANES_PER_ROW;
          column[i][d] = nonzero < rows.range[i].y ? cols[nonzero] : -1;
        }
    }
    __device__ __forceinline__ int row(int i) const {
      return thread / LANES_PER_ROW + i * ROWS_AT_ONCE;
    }
    __device__ __forceinline__ int end(int i) const { return rows.range[i].y; }
    __device__ __forceinline__ int first(int i) const {
      return rows.range[i].x + thread % LANES_PER_ROW;
    }
  };

  // Calls store(nonzero, sum) for the nonzeros of a thread's rows in columns left .. left + BN - 1
  // of the tile, once all threads have stored their sums. All prefetched nonzeros are loaded before
  // the first is stored.
  template <int DEPTH, class Store>
  __device__ __forceinline__ void sample(const PrefetchedColumns<DEPTH>& columns, int left,
                                         const Store& store) const {
    float sampled[ROWS_PER_THREAD][DEPTH];
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i)
#pragma unroll
      for (int d = 0; d < DEPTH; ++d) {
        const int column = columns.column[i][d] - columns.n0 - left;
        sampled[i][d] = tile[index(columns.row(i), in_tile(column) ? column : 0)];
      }
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i)
#pragma unroll
      for (int d = 0; d < DEPTH; ++d) {
        const int nonzero = columns.first(i) + d * LANES_PER_ROW;
        if (in_tile(columns.column[i][d] - columns.n0 - left)) store(nonzero, sampled[i][d]);
      }
    // The nonzeros of longer rows.
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i)
      for (int nonzero = columns.first(i) + DEPTH * LANES_PER_ROW; nonzero < columns.end(i);
           nonzero += LANES_PER_ROW) {
        const int column = columns.cols[nonzero] - columns.n0 - left;
        if (in_tile(column)) store(nonzero, tile[index(columns.row(i), column)]);
      }
  }

 private:
  static __device__ __forceinline__ bool in_tile(int column) {
    return static_cast<u32>(column) < static_cast<u32>(BN);
  }
  static __device__ __forceinline__ int index(int row, int column) {
    return row * BN + (column ^ row % 4 * 8);
  }
};

}  // namespace sddmm
