// The epilogue of wgmma sums of which only the sampled entries are stored. Each warp samples its
// own 16 rows of accumulators, so no block-wide barrier is needed.
#pragma once

#include "gemm_core/fragment.cuh"
#include "sddmm/value.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

// 16 rows of COLUMNS sums, PART_COLUMNS of them at a time in shared memory, converted to STAGED.
// LANES_PER_ROW lanes sample a row together. DEPTH: the number of nonzeros of each of its rows
// whose columns a lane prefetches. ROW_BYTES: the number of bytes of shared memory for a row, 256
// or 176.
template <class STAGED, int COLUMNS, int LANES_PER_ROW, int DEPTH, int ROW_BYTES>
struct SampledWarp {
  // Rows 256 bytes apart fall into the same banks, so their columns are XORed with the row, in
  // groups of eight. Rows 160 or 176 bytes apart fall into different banks by themselves.
  static constexpr bool SWIZZLED = ROW_BYTES == 256;
  static constexpr int PART_COLUMNS =
      (SWIZZLED ? 256 : sizeof(STAGED) == 4 ? 160 : 176) / sizeof(STAGED);
  static constexpr int BYTES = 16 * ROW_BYTES;  // the shared memory of a warp
  static constexpr int ROWS_AT_ONCE = 32 / LANES_PER_ROW, ROWS_PER_LANE = 16 / ROWS_AT_ONCE;
  static_assert(COLUMNS % 8 == 0 && (SWIZZLED || ROW_BYTES == 176), "rows without bank conflicts");

  // A lane's nonzeros, loaded before the sums are complete, to hide the latency of the loads: the
  // range of each of its rows, and the columns of the first DEPTH nonzeros of each, or -1.
  struct Nonzeros {
    int begin[ROWS_PER_LANE], end[ROWS_PER_LANE], columns[ROWS_PER_LANE][DEPTH];

    // row_offsets: the entry of the warp's first row, those of the next rows row_stride apart; null
    // if the tile does not exist.
    __device__ __forceinline__ void load_ranges(const int* row_offsets, int row_stride) {
#pragma unroll
      for (int h = 0; h < ROWS_PER_LANE; ++h) {
        const int* const own = row_offsets + row(h) * row_stride;
        begin[h] = row_offsets != nullptr ? own[0] : 0;
        end[h] = row_offsets != nullptr ? own[1] : 0;
      }
    }
    __device__ __forceinline__ void prefetch(const int* cols) {
#pragma unroll
      for (int h = 0; h < ROWS_PER_LANE; ++h)
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) columns[h][d] = exists(h, d) ? cols[nonzero(h, d)] : -1;
    }
    __device__ __forceinline__ int nonzero(int h, int d) const {
      return begin[h] + lane() % LANES_PER_ROW + d * LANES_PER_ROW;
    }
    __device__ __forceinline__ bool exists(int h, int d) const { return nonzero(h, d) < end[h]; }
  };

  // Calls store(nonzero, scale * sum) for all nonzeros of the warp's rows. sums: an accumulator of
  // wgmma (fragment.cuh: wgmma_d) whose first column is n0. cols: the columns, ascending within a
  // row. `staged`: the BYTES of this warp.
  template <class Store>
  static __device__ __forceinline__ void sample(const float (&sums)[COLUMNS / 2], float scale,
                                                const Nonzeros& nonzeros, const int* cols, int n0,
                                                STAGED* staged, const Store& store) {
    using Numeric = gemm_core::Numeric<STAGED>;
    STAGED sampled[ROWS_PER_LANE][DEPTH];
    int next[ROWS_PER_LANE];  // the first nonzero that was not prefetched
    bool all_prefetched = true;
#pragma unroll
    for (int h = 0; h < ROWS_PER_LANE; ++h) {
      next[h] = nonzeros.nonzero(h, DEPTH);
      all_prefetched &= next[h] >= nonzeros.end[h];
    }
    all_prefetched = __all_sync(FULL_MASK, all_prefetched);
#pragma unroll
    for (int from = 0; from < COLUMNS; from += PART_COLUMNS) {
      const int part_n0 = n0 + from;
      __syncwarp();  // all lanes have read the last part
      // Store one part of the columns to shared memory.
#pragma unroll
      for (int i = from / 2; i < from / 2 + PART_COLUMNS / 2 && i < COLUMNS / 2; i += 2) {
        const auto at = gemm_core::fragment::wgmma_d(lane(), i);
        *reinterpret_cast<typename Numeric::Pair*>(staged + index(at.row, at.column - from)) =
            Numeric::pair(scale * sums[i], scale * sums[i + 1]);
      }
      __syncwarp();
      // Load the prefetched nonzeros of this part to registers.
#pragma unroll
      for (int h = 0; h < ROWS_PER_LANE; ++h)
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
          const int column = nonzeros.columns[h][d] - part_n0;
          if (in_part(column)) sampled[h][d] = staged[index(row(h), column)];
        }
      if (all_prefetched) continue;
      // Store the other nonzeros of this part at once.
#pragma unroll
      for (int h = 0; h < ROWS_PER_LANE; ++h)
        for (; next[h] < nonzeros.end[h]; next[h] += LANES_PER_ROW) {
          const int column = cols[next[h]] - part_n0;
          if (!in_part(column)) break;
          store(next[h], staged[index(row(h), column)]);
        }
    }
    // Store the prefetched nonzeros of all parts.
#pragma unroll
    for (int h = 0; h < ROWS_PER_LANE; ++h)
#pragma unroll
      for (int d = 0; d < DEPTH; ++d)
        if (nonzeros.exists(h, d)) store(nonzeros.nonzero(h, d), sampled[h][d]);
  }

 private:
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int row(int h) {
    return lane() / LANES_PER_ROW + ROWS_AT_ONCE * h;
  }
  static __device__ __forceinline__ bool in_part(int column) {
    return static_cast<unsigned int>(column) < static_cast<unsigned int>(PART_COLUMNS);
  }
  static __device__ __forceinline__ int index(int row, int column) {
    return row * PART_COLUMNS + (SWIZZLED ? column ^ row % (PART_COLUMNS / 16) * 8 : column);
  }
};

}  // namespace sddmm
