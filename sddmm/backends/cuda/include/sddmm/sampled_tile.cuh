// The epilogue of a tile of which only the sampled entries are stored: the block puts all sums into
// shared memory, and each thread loads those of its nonzeros.
#pragma once

#include "sddmm/value.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

// A BM x BN tile of sums in shared memory. Columns are XORed with the row, in groups of eight, so
// that storing fragments has no bank conflicts.
template <int BM, int BN>
struct SampledTile {
  static constexpr int BYTES = BM * BN * 4;
  float* tile;

  // Stores sums of an accumulator fragment (gemm_core::store_mma and store_wmma call it).
  __device__ __forceinline__ void operator()(int row, int column, float v0, float v1) const {
    *reinterpret_cast<float2*>(tile + index(row, column)) = make_float2(v0, v1);
  }
  __device__ __forceinline__ void operator()(int row, int column, float v) const {
    tile[index(row, column)] = v;
  }

  __device__ __forceinline__ float sum(int row, int column) const {
    return tile[index(row, column)];
  }
  static __device__ __forceinline__ bool has_column(int column) {
    return static_cast<u32>(column) < static_cast<u32>(BN);
  }

 private:
  static __device__ __forceinline__ int index(int row, int column) {
    return row * BN + (column ^ row % 4 * 8);
  }
};

// The number of lanes that sample a row of scattered nonzeros together.
constexpr int LANES_PER_ROW = 8;

// Calls store(nonzero, column) for this lane's share of the nonzeros begin .. end - 1, which are of
// one row of the tile. cols: the columns in the matrix; the tile's first is n0, and it has BN.
template <int BN, class Store>
__device__ __forceinline__ void sample_row(int begin, int end, const int* cols, int n0,
                                           const Store& store) {
  constexpr int AHEAD = 4;  // the number of columns that are loaded before the first is used
  for (int first = begin; first < end; first += AHEAD * LANES_PER_ROW) {
    int columns[AHEAD];
#pragma unroll
    for (int d = 0; d < AHEAD; ++d) {
      const int nonzero = first + d * LANES_PER_ROW;
      columns[d] = nonzero < end ? cols[nonzero] - n0 : -1;
    }
#pragma unroll
    for (int d = 0; d < AHEAD; ++d)
      if (static_cast<u32>(columns[d]) < static_cast<u32>(BN))
        store(first + d * LANES_PER_ROW, columns[d]);
  }
}

// The nonzeros of a thread's rows where eight lanes sample a row together. Their ranges, and the
// columns of each row's first DEPTH nonzeros per lane, are loaded before the sums are in shared
// memory, to hide the latency of the loads.
template <int BM, int BN, int THREADS, int DEPTH>
struct ScatteredRows {
  // The number of rows that all threads sample at once, and of rows that a thread samples.
  static constexpr int ROWS_AT_ONCE = THREADS / LANES_PER_ROW;
  static constexpr int ROWS_PER_THREAD = (BM + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;

  const int* offsets;  // the entry of the tile's first row
  int row_stride;      // entries from row to row
  int begin[ROWS_PER_THREAD], end[ROWS_PER_THREAD], columns[ROWS_PER_THREAD][DEPTH];

  __device__ __forceinline__ ScatteredRows(const int* offsets_, int row_stride_)
      : offsets(offsets_), row_stride(row_stride_) {}

  // Nothing yet: ranges are loaded after the main loop.
  template <class T>
  __device__ __forceinline__ void prefetch(const T*) const {}

  // Loads ranges and columns when the main loop, which needs the registers, is done; begins to load
  // values.
  template <class T, class OUT>
  __device__ __forceinline__ void load(const int* cols, int n0, const int* perm,
                                       const Result<T, OUT>& result) {
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i) {
      const int* const own = offsets + static_cast<i64>(row(i)) * row_stride;
      const bool exists = BM % ROWS_AT_ONCE == 0 || row(i) < BM;
      begin[i] = exists ? own[0] + static_cast<int>(threadIdx.x) % LANES_PER_ROW : 0;
      end[i] = exists ? own[1] : 0;
    }
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i)
#pragma unroll
      for (int d = 0; d < DEPTH; ++d) {
        const int nonzero = begin[i] + d * LANES_PER_ROW;
        columns[i][d] = nonzero < end[i] ? cols[nonzero] - n0 : -1;
      }
    if (result.values == nullptr || perm != nullptr) return;
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i)
#pragma unroll
      for (int d = 0; d < DEPTH; ++d)
        if (begin[i] + d * LANES_PER_ROW < end[i]) result.prefetch(begin[i] + d * LANES_PER_ROW);
  }

  // Stores all nonzeros once all threads have stored their sums. All sums and values of prefetched
  // nonzeros are loaded before the first is stored.
  template <class OUT, class T>
  __device__ __forceinline__ void store(const SampledTile<BM, BN>& tile, const int* cols, int n0,
                                        const int* perm, const Result<T, OUT>& result) const {
    if (perm == nullptr && result.values == nullptr)
      store_all<true>(tile, cols, n0, perm, result);
    else
      store_all<false>(tile, cols, n0, perm, result);
  }

 private:
  // PLAIN: there are neither perm nor values, so that stores have no branches.
  template <bool PLAIN, class OUT, class T>
  __device__ __forceinline__ void store_all(const SampledTile<BM, BN>& tile, const int* cols, int n0,
                                            const int* perm, const Result<T, OUT>& result) const {
    using Tile = SampledTile<BM, BN>;
    const auto position_of = [&](int nonzero) {
      return PLAIN || perm == nullptr ? nonzero : perm[nonzero];
    };
    float sums[ROWS_PER_THREAD][DEPTH];
    int positions[ROWS_PER_THREAD][DEPTH];
    [[maybe_unused]] T weights[ROWS_PER_THREAD][DEPTH];
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i)
#pragma unroll
      for (int d = 0; d < DEPTH; ++d)
        if (Tile::has_column(columns[i][d]))
          positions[i][d] = position_of(begin[i] + d * LANES_PER_ROW);
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i)
#pragma unroll
      for (int d = 0; d < DEPTH; ++d) {
        const bool has_column = Tile::has_column(columns[i][d]);
        if (!PLAIN && has_column && result.values != nullptr)
          weights[i][d] = load_read_only(result.values + positions[i][d]);
        sums[i][d] = result.alpha * tile.sum(row(i), has_column ? columns[i][d] : 0);
      }
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i)
#pragma unroll
      for (int d = 0; d < DEPTH; ++d) {
        if (!Tile::has_column(columns[i][d])) continue;
        if (!PLAIN && result.values != nullptr) sums[i][d] *= widened(weights[i][d]);
        result.out[positions[i][d]] = Narrow<OUT>::from(sums[i][d]);
      }
    // The nonzeros of longer rows.
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i)
      sample_row<BN>(begin[i] + DEPTH * LANES_PER_ROW, end[i], cols, n0,
                     [&](int nonzero, int column) {
                       const float sum = tile.sum(row(i), column);
                       if (PLAIN)
                         result.out[nonzero] = Narrow<OUT>::from(sum * result.alpha);
                       else
                         result.store(position_of(nonzero), sum);
                     });
  }

  static __device__ __forceinline__ int row(int i) {
    return threadIdx.x / LANES_PER_ROW + i * ROWS_AT_ONCE;
  }
};

}  // namespace sddmm
