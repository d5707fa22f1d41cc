// The epilogue of a tile of which only the sampled entries are wanted: through shared memory, from
// which each nonzero takes its own.
#pragma once

#include "sddmm/value.cuh"

namespace sddmm {

// A BM x BN tile of sums in shared memory, for THREADS threads. Columns are XORed with the row, by
// eights, so that fragments are written without bank conflicts.
template <int BM, int BN, int THREADS>
struct SampledTile {
  static constexpr int BYTES = BM * BN * 4;
  static constexpr int LANES = 8;  // that share a row
  static constexpr int ROWS = THREADS / LANES, ROUNDS = (BM + ROWS - 1) / ROWS;

  float* tile;

  // What gemm_core::store_mma and store_wmma hand over, from (0, 0) on.
  __device__ __forceinline__ void operator()(int row, int column, float v0, float v1) const {
    *reinterpret_cast<float2*>(tile + index(row, column)) = make_float2(v0, v1);
  }
  __device__ __forceinline__ void operator()(int row, int column, float v) const {
    tile[index(row, column)] = v;
  }

  // Which nonzeros each row of the tile has: bounds[r].x .. bounds[r].y - 1.
  struct Rows {
    int2 bounds[ROUNDS];

    Rows() = default;
    // starts: of the first row, and where it ends; the next rows' lie by_row further each.
    __device__ __forceinline__ Rows(const int* starts, int by_row, int thread) {
#pragma unroll
      for (int i = 0; i < ROUNDS; ++i) {
        const int row = thread / LANES + i * ROWS;
        const int* const own = starts + static_cast<i64>(row) * by_row;
        bounds[i] = BM % ROWS == 0 || row < BM ? make_int2(own[0], own[1]) : make_int2(0, 0);
      }
    }
  };

  // Columns, from n0 on, of a thread's first DEPTH nonzeros in each of its rows: asked for before
  // the sums are there, as memory takes its time.
  template <int DEPTH>
  struct Columns {
    Rows rows;
    const int* cols;
    int n0, thread;
    int column[ROUNDS][DEPTH];

    Columns() = default;
    __device__ __forceinline__ Columns(const Rows& rows_, const int* cols_, int n0_, int thread_)
        : rows(rows_), cols(cols_), n0(n0_), thread(thread_) {
#pragma unroll
      for (int i = 0; i < ROUNDS; ++i)
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
          const int at = first(i) + d * LANES;
          column[i][d] = at < rows.bounds[i].y ? cols[at] : -1;
        }
    }
    __device__ __forceinline__ int row(int i) const { return thread / LANES + i * ROWS; }
    __device__ __forceinline__ int end(int i) const { return rows.bounds[i].y; }
    __device__ __forceinline__ int first(int i) const {
      return rows.bounds[i].x + thread % LANES;
    }
  };

  // store(nonzero, sum) for the nonzeros in columns left .. left + BN of what `columns` knows, by
  // all threads, whose sums are in place. All are read before the first is stored.
  template <int DEPTH, class Store>
  __device__ __forceinline__ void sample(const Columns<DEPTH>& columns, int left,
                                         const Store& store) const {
    float taken[ROUNDS][DEPTH];
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i)
#pragma unroll
      for (int d = 0; d < DEPTH; ++d) {
        const int column = columns.column[i][d] - columns.n0 - left;
        taken[i][d] = tile[index(columns.row(i), inside(column) ? column : 0)];
      }
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i)
#pragma unroll
      for (int d = 0; d < DEPTH; ++d) {
        const int at = columns.first(i) + d * LANES;
        if (inside(columns.column[i][d] - columns.n0 - left))
          store(at, taken[i][d]);
      }
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i)
      for (int at = columns.first(i) + DEPTH * LANES; at < columns.end(i); at += LANES) {
        const int column = columns.cols[at] - columns.n0 - left;
        if (inside(column)) store(at, tile[index(columns.row(i), column)]);
      }
  }

 private:
  static __device__ __forceinline__ bool inside(int column) {
    return static_cast<u32>(column) < static_cast<u32>(BN);
  }
  static __device__ __forceinline__ int index(int row, int column) {
    return row * BN + (column ^ row % 4 * 8);
  }
};

}  // namespace sddmm
