// Storing the rows of a tile whose nonzeros have consecutive columns: as segments, by whole warps,
// without a look at the columns.
#pragma once

#include "sddmm/sampled_tile.cuh"

namespace sddmm {

// The rows of one warp of a tile. Lane r holds what is known of row r, r + 32 ... of the warp. No
// row has two nonzeros in the same column, and columns ascend, so that a row's first and last tell
// whether its nonzeros are a segment: consecutive columns.
template <int BM, int BN, int THREADS>
struct SegmentRows {
  static constexpr int ROWS = BM * 32 / THREADS, ROWS_PER_LANE = (ROWS + 31) / 32;
  static_assert(ROWS % 4 == 0 && BM * 32 % THREADS == 0, "equal shares");

  // first: the first column in the tile of a row that is a segment, else -1.
  int begin[ROWS_PER_LANE], end[ROWS_PER_LANE], first[ROWS_PER_LANE];

  // Loads ranges before the main loop. offsets: the entry of the tile's first row; those of the next
  // rows follow row_stride apart.
  __device__ __forceinline__ SegmentRows(const int* offsets, int row_stride) {
#pragma unroll
    for (int i = 0; i < ROWS_PER_LANE; ++i) {
      const int own_row = warp_row() + (lane() + 32 * i) % ROWS;
      const int* const own = offsets + static_cast<i64>(own_row) * row_stride;
      begin[i] = own[0], end[i] = own[1];
    }
  }

  // Loads columns when the main loop is done; full rows need none.
  __device__ __forceinline__ void load(const int* cols, int n0) {
#pragma unroll
    for (int i = 0; i < ROWS_PER_LANE; ++i) {
      const int count = end[i] - begin[i];
      first[i] = 0;
      if (count > 0 && count < BN) {
        const int column = cols[begin[i]];
        first[i] = cols[end[i] - 1] - column + 1 == count ? column - n0 : -1;
      }
    }
  }

  // Stores all nonzeros once all threads have stored their sums.
  template <class OUT, class T>
  __device__ __forceinline__ void store(const SampledTile<BM, BN>& tile, const int* cols, int n0,
                                        const int*, const Result<T, OUT>& result) const {
    if (result.values == nullptr) {
      store_rows<false>(tile, cols, n0, result);
    } else {
      store_rows<true>(tile, cols, n0, result);
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int warp_row() { return threadIdx.x / 32 * ROWS; }

  template <bool WEIGHTED, class OUT, class T>
  __device__ __forceinline__ void store_rows(const SampledTile<BM, BN>& tile, const int* cols,
                                             int n0, const Result<T, OUT>& result) const {
    bool scattered = false;
#pragma unroll
    for (int i = 0; i < ROWS_PER_LANE; ++i) {
      scattered |= first[i] < 0;
#pragma unroll 4
      for (int r = 0; r < (ROWS < 32 ? ROWS : 32); ++r) {
        const int from = __shfl_sync(FULL_MASK, begin[i], r), to = __shfl_sync(FULL_MASK, end[i], r);
        const int column = __shfl_sync(FULL_MASK, first[i], r);
        if (column >= 0 && from < to)
          store_segment<WEIGHTED>(tile, warp_row() + 32 * i + r, column, from, to - from, result);
      }
    }
    if (!__any_sync(FULL_MASK, scattered)) return;
#pragma unroll
    for (int i = 0; i < ROWS_PER_LANE; ++i)
#pragma unroll 1
      for (int r = lane() / LANES_PER_ROW; r < (ROWS < 32 ? ROWS : 32); r += 32 / LANES_PER_ROW) {
        const int from = __shfl_sync(FULL_MASK, begin[i], r), to = __shfl_sync(FULL_MASK, end[i], r);
        if (__shfl_sync(FULL_MASK, first[i], r) < 0)
          sample_row(tile, warp_row() + 32 * i + r, from + lane() % LANES_PER_ROW, to, cols, n0,
                     [&](int nonzero, float sum) { result.store(nonzero, sum); });
      }
  }

  // Stores `count` sums of a row from `column` on to out[begin ..].
  template <bool WEIGHTED, class OUT, class T>
  static __device__ __forceinline__ void store_segment(const SampledTile<BM, BN>& tile, int row,
                                                       int column, int begin, int count,
                                                       const Result<T, OUT>& result) {
    OUT* const out = result.out + begin;
    const auto scaled = [&](int i) {
      float sum = result.alpha * tile.sum(row, column + i);
      if constexpr (WEIGHTED) sum *= widened(result.values[begin + i]);
      return sum;
    };
    if constexpr (sizeof(OUT) == 2) {
      // Pairs at addresses that are multiples of four bytes. In 64 entries that begin between two
      // such addresses, lane 0 has the first and the last.
      const bool odd = reinterpret_cast<unsigned long long>(out) % 4 != 0;
      const int low = odd && lane() > 0 ? 2 * lane() - 1 : 2 * lane();
      const int high = !odd ? low + 1 : lane() > 0 ? low + 1 : 63;
#pragma unroll
      for (int part = 0; part < BN; part += 64) {
        const int i = part + low, j = part + high;
        if (BN > 64 && part >= count) break;
        const float v0 = i < count ? scaled(i) : 0.f, v1 = j < count ? scaled(j) : 0.f;
        if (j == i + 1 && j < count) {
          *reinterpret_cast<u32*>(out + i) = Numeric<OUT>::pair(v0, v1);
        } else {
          if (i < count) out[i] = Narrow<OUT>::from(v0);
          if (j < count) out[j] = Narrow<OUT>::from(v1);
        }
      }
    } else {
#pragma unroll
      for (int i = lane(); i < BN; i += 32)
        if (i < count) out[i] = Narrow<OUT>::from(scaled(i));
    }
  }
};

}  // namespace sddmm
