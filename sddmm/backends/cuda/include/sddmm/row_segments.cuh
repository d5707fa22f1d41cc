// Storing the rows of a tile whose nonzeros have consecutive columns: as segments of the output, by
// whole warps, without a look at the columns.
#pragma once

#include "sddmm/sampled_tile.cuh"

namespace sddmm {

// A BM x BN tile of results of 16 bits in shared memory, two to a word. Words are XORed with the
// row, in groups of four, so that storing fragments has no bank conflicts.
template <int BM, int BN, class OUT>
struct RoundedTile {
  static constexpr int ROW_WORDS = BN / 2;
  static constexpr int GROUPS = ROW_WORDS / 4 < 8 ? ROW_WORDS / 4 : 8, LINE_ROWS = 8 / GROUPS;
  static_assert(sizeof(OUT) == 2 && BN % 32 == 0 && (GROUPS & (GROUPS - 1)) == 0, "whole words");
  static constexpr int SEGMENTS_AT_ONCE = 1;
  u32* words;
  float alpha;

  // Stores sums of an accumulator fragment.
  __device__ __forceinline__ void operator()(int row, int column, float v0, float v1) const {
    words[index(row, column / 2)] = Numeric<OUT>::pair(alpha * v0, alpha * v1);
  }
  __device__ __forceinline__ void operator()(int row, int column, float v) const {
    reinterpret_cast<OUT*>(words + index(row, column / 2))[column % 2] =
        Narrow<OUT>::from(alpha * v);
  }

  // Stores counts[0] results of a row from columns[0] on to out[from[0] ..], by all lanes of a warp,
  // two at a time to addresses that are multiples of four bytes.
  __device__ __forceinline__ void store_segments(int row, const int (&columns)[1],
                                                 const int (&counts)[1], const int (&from)[1],
                                                 OUT* first_out) const {
    const int column = columns[0], count = counts[0];
    OUT* const out = first_out + from[0];
    const int odd = starts_between_words(out);
#pragma unroll 1
    for (int i = 2 * lane() - odd; i < count; i += 64) {
      const u32 pair = pair_at(row, column + i);
      if (i >= 0 && i + 1 < count) {
        *reinterpret_cast<u32*>(out + i) = pair;
      } else if (i >= 0) {
        out[i] = low_half(pair);
      } else {
        out[0] = low_half(pair >> 16);
      }
    }
  }

  // Stores rows row .. row + ROWS - 1, all of whose columns hold nonzeros; `row` is a multiple of
  // eight. Lane r has the first nonzero of row r. Of the results that a warp stores at once, lane 0
  // has the first and the last where the row begins between words of the output.
  template <int ROWS>
  __device__ __forceinline__ void store_full_rows(int row, int begin, OUT* out) const {
    constexpr int PART = BN < 64 ? BN : 64;  // the number of results that are stored at once
    constexpr int AHEAD = 8;                 // the number of rows loaded before the first is stored
    const int own = lane() % (PART / 2), before = (own + PART / 2 - 1) % (PART / 2);
    const int odd_base = starts_between_words(out);
    // A number, so that the compiler adds an offset to it instead of to what `out` is made of.
    const unsigned long long own_out = reinterpret_cast<unsigned long long>(out) + 4 * own;
#pragma unroll 1
    for (int first = 0; first < ROWS; first += AHEAD, row += AHEAD) {
      int from[AHEAD], odd[AHEAD];
      u32 pairs[AHEAD][BN / PART];
#pragma unroll
      for (int r = 0; r < AHEAD; ++r) {
        from[r] = __shfl_sync(FULL_MASK, begin, first + r);
        odd[r] = (from[r] + odd_base) & 1;
#pragma unroll
        for (int part = 0; part < BN / PART; ++part)
          pairs[r][part] = __byte_perm(words[index(row + r, part * (PART / 2) + before)],
                                       words[index(row + r, part * (PART / 2) + own)],
                                       odd[r] ? 0x5432 : 0x7654);
      }
      if (BN < 64 && lane() >= PART / 2) continue;
#pragma unroll
      for (int r = 0; r < AHEAD; ++r) {
        OUT* const target = reinterpret_cast<OUT*>(own_out + (from[r] - odd[r]) * 2ll);
#pragma unroll
        for (int part = 0; part < BN / PART; ++part) {
          if (odd[r] && own == 0) {
            target[part * PART + PART] = low_half(pairs[r][part]);
            target[part * PART + 1] = low_half(pairs[r][part] >> 16);
          } else {
            *reinterpret_cast<u32*>(target + part * PART) = pairs[r][part];
          }
        }
      }
    }
  }

  __device__ __forceinline__ void store_entry(int row, int column, int nonzero, OUT* out) const {
    out[nonzero] = low_half(words[index(row, column / 2)] >> column % 2 * 16);
  }

 private:
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int starts_between_words(const OUT* out) {
    return reinterpret_cast<unsigned long long>(out) / 2 % 2;
  }
  static __device__ __forceinline__ OUT low_half(u32 pair) { return {static_cast<u16>(pair)}; }
  static __device__ __forceinline__ int index(int row, int word) {
    return row * ROW_WORDS + (word ^ row / LINE_ROWS % GROUPS * 4);
  }
  // The results of `column` and of the next one; what is not in the row may be anything.
  __device__ __forceinline__ u32 pair_at(int row, int column) const {
    const int first = (column + 2) / 2 - 1, second = (column + 1) / 2;
    return __funnelshift_r(words[index(row, first < 0 ? 0 : first)],
                           words[index(row, second < ROW_WORDS ? second : 0)], column % 2 * 16);
  }
};

// The same of float sums, which are scaled when they are stored.
template <int BM, int BN, bool WEIGHTED, class T, class OUT>
struct ScaledTile {
  // The number of rows whose weights are loaded before the first is stored.
  static constexpr int SEGMENTS_AT_ONCE = WEIGHTED ? 4 : 1;
  SampledTile<BM, BN> tile;
  const Result<T, OUT>& result;

  // Stores counts[r] results of row `row` + r from columns[r] on to out[from[r] ..].
  template <int COUNT>
  __device__ __forceinline__ void store_segments(int row, const int (&columns)[COUNT],
                                                 const int (&counts)[COUNT],
                                                 const int (&from)[COUNT], OUT* out) const {
    constexpr int PARTS = BN / 32;
    const int lane = threadIdx.x % 32;
    [[maybe_unused]] T weights[COUNT][PARTS];
#pragma unroll
    for (int r = 0; WEIGHTED && r < COUNT; ++r)
#pragma unroll
      for (int part = 0; part < PARTS; ++part)
        if (lane + 32 * part < counts[r])
          weights[r][part] = load_read_only(result.values + from[r] + lane + 32 * part);
#pragma unroll
    for (int r = 0; r < COUNT; ++r)
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        const int i = lane + 32 * part;
        if (i >= counts[r]) continue;
        float sum = result.alpha * tile.sum(row + r, columns[r] + i);
        if constexpr (WEIGHTED) sum *= widened(weights[r][part]);
        out[from[r] + i] = Narrow<OUT>::from(sum);
      }
  }
  template <int ROWS>
  __device__ __forceinline__ void store_full_rows(int row, int begin, OUT* out) const {
    constexpr int AHEAD = 4;  // the number of rows loaded before the first is stored
    constexpr int PARTS = BN / 32;
#pragma unroll 1
    for (int first = 0; first < ROWS; first += AHEAD, row += AHEAD) {
      int from[AHEAD];
      float sums[AHEAD][PARTS];
      [[maybe_unused]] T weights[AHEAD][PARTS];
#pragma unroll
      for (int r = 0; r < AHEAD; ++r) {
        from[r] = __shfl_sync(FULL_MASK, begin, first + r) + static_cast<int>(threadIdx.x) % 32;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
          if constexpr (WEIGHTED)
            weights[r][part] = load_read_only(result.values + from[r] + 32 * part);
          sums[r][part] = result.alpha * tile.sum(row + r, threadIdx.x % 32 + 32 * part);
        }
      }
#pragma unroll
      for (int r = 0; r < AHEAD; ++r)
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
          if constexpr (WEIGHTED) sums[r][part] *= widened(weights[r][part]);
          out[from[r] + 32 * part] = Narrow<OUT>::from(sums[r][part]);
        }
    }
  }
  __device__ __forceinline__ void store_entry(int row, int column, int nonzero, OUT* out) const {
    float sum = result.alpha * tile.sum(row, column);
    if constexpr (WEIGHTED) sum *= widened(load_read_only(result.values + nonzero));
    out[nonzero] = Narrow<OUT>::from(sum);
  }
};

// The rows of one warp of a tile. Lane r holds what is known of row r, r + 32 ... of the warp. No
// row has two nonzeros in the same column, and columns ascend, so that a row's first and last tell
// whether its nonzeros are a segment: consecutive columns.
template <int BM, int BN, int THREADS>
struct SegmentRows {
  static constexpr int ROWS = BM * 32 / THREADS, ROWS_PER_LANE = (ROWS + 31) / 32;
  static constexpr int SHARED_ROWS = ROWS < 32 ? ROWS : 32;  // rows that the lanes hold at once
  static_assert(ROWS % 8 == 0 && BM * 32 % THREADS == 0, "equal shares");

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

  // Begins to load the values of all nonzeros, if there are any: the main loop takes as long. A loop,
  // as the compiler would wait for the ranges to decide a few prefetches where there are no values.
  template <class T>
  __device__ __forceinline__ void prefetch(const T* values) const {
    constexpr int LINE = 128 / sizeof(T);  // the values of a line of memory
    if (values == nullptr) return;
#pragma unroll 1
    for (int i = 0; i < BN + LINE; i += LINE)
#pragma unroll
      for (int r = 0; r < ROWS_PER_LANE; ++r) {
        const int nonzero = begin[r] + i < end[r] ? begin[r] + i : end[r] - 1;
        if (begin[r] < end[r]) gemm_core::ptx::prefetch_l2(values + nonzero);
      }
  }

  // Loads columns when the main loop is done; full rows need none.
  template <class T, class OUT>
  __device__ __forceinline__ void load(const int* cols, int n0, const int*,
                                       const Result<T, OUT>&) {
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

  // Stores all nonzeros of a RoundedTile or ScaledTile that all threads have filled.
  template <class Tile, class OUT>
  __device__ __forceinline__ void store(const Tile& tile, const int* cols, int n0, OUT* out) const {
    constexpr int TOGETHER = Tile::SEGMENTS_AT_ONCE, UNROLLED = TOGETHER > 1 ? 1 : 2;
#pragma unroll
    for (int i = 0; i < ROWS_PER_LANE; ++i) {
      const int count = end[i] - begin[i], row = warp_row() + 32 * i;
      if (__all_sync(FULL_MASK, count == BN)) {
        tile.template store_full_rows<SHARED_ROWS>(row, begin[i], out);
        continue;
      }
#pragma unroll UNROLLED
      for (int r = 0; r < SHARED_ROWS; r += TOGETHER) {
        int from[TOGETHER], length[TOGETHER], column[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; ++j) {
          from[j] = __shfl_sync(FULL_MASK, begin[i], r + j);
          length[j] = __shfl_sync(FULL_MASK, count, r + j);
          column[j] = __shfl_sync(FULL_MASK, first[i], r + j);
          if (column[j] < 0) length[j] = 0;
        }
        if (TOGETHER > 1 || length[0] > 0) tile.store_segments(row + r, column, length, from, out);
      }
      if (__all_sync(FULL_MASK, first[i] >= 0)) continue;
#pragma unroll 1
      for (int r = lane() / LANES_PER_ROW; r < SHARED_ROWS; r += 32 / LANES_PER_ROW) {
        const int from = __shfl_sync(FULL_MASK, begin[i], r);
        const int to = __shfl_sync(FULL_MASK, end[i], r);
        if (__shfl_sync(FULL_MASK, first[i], r) < 0)
          sample_row<BN>(from + lane() % LANES_PER_ROW, to, cols, n0,
                         [&](int nonzero, int column) {
                           tile.store_entry(row + r, column, nonzero, out);
                         });
      }
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int warp_row() { return threadIdx.x / 32 * ROWS; }
};

}  // namespace sddmm
