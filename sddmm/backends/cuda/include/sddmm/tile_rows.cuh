// The rows of a tile as the warps that store its entries share them: the lanes of a warp hold the
// ranges of the nonzeros of its rows.
#pragma once

#include "sddmm/tile_offsets.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

// Rows come in groups of 64: group g has the (g / 2)-th 64 rows of consumer warpgroup g % 2. Three
// warps share the rows of each slot of Ring (staging_ring.cuh), 12 each but the last, which has 8.
// Lane owner(part, r) holds the warp's r-th row of the slot of this part of each group. FIND_RUNS:
// whether to test which rows are contiguous.
template <class Ring, bool FIND_RUNS>
struct TileRows {
  static constexpr int WARPS = 3, WARP_ROWS = 12, GROUPS = Ring::GROUPS;
  int begin[GROUPS], end[GROUPS];
  int first_column[GROUPS];  // of the first nonzero
  bool contiguous[GROUPS];   // the columns are consecutive, or there are none

  // The first row of a slot that a warp has, and how many it has.
  static __device__ __forceinline__ int first_row(int warp) { return warp * WARP_ROWS; }
  static __device__ __forceinline__ int row_count(int warp) {
    return warp + 1 < WARPS ? WARP_ROWS : Ring::ROWS - (WARPS - 1) * WARP_ROWS;
  }
  static __device__ __forceinline__ int owner(int part, int row) {
    return part * 16 + row;
  }

  // offsets: the entry of the tile's first row, those of the next rows row_stride apart; null if
  // the tile does not exist.
  __device__ __forceinline__ void load_ranges(int warp, const int* offsets, int row_stride) {
    const int part = threadIdx.x % 32 / 16, own_row = threadIdx.x % 16;
    const bool exists = offsets != nullptr && own_row < row_count(warp);
    const int row_of_block = Ring::row_of_block(part, first_row(warp) + own_row);
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
      const int row = (group % 2 * (GROUPS / 2) + group / 2) * 64 + row_of_block;
      const int* const own = offsets + static_cast<i64>(row) * row_stride;
      begin[group] = exists ? own[0] : 0;
      end[group] = exists ? own[1] : 0;
    }
  }
  // Tests which rows are contiguous. Columns strictly ascend, so the first and the last tell.
  __device__ __forceinline__ void find_runs(const int* cols) {
    if constexpr (FIND_RUNS) {
#pragma unroll
      for (int group = 0; group < GROUPS; ++group) {
        const int first = begin[group], last = end[group] - 1;
        first_column[group] = first <= last ? cols[first] : 0;
        contiguous[group] = first > last || cols[last] - first_column[group] == last - first;
      }
    }
  }
  // Whether all of the warp's rows of a group are contiguous.
  __device__ __forceinline__ bool all_contiguous(int group) const {
    if constexpr (FIND_RUNS)
      return __all_sync(FULL_MASK, of_group(contiguous, group));
    else
      return false;
  }
  // This lane's entry for a group.
  template <class X>
  static __device__ __forceinline__ X of_group(const X (&held)[GROUPS], int group) {
    X entry = held[0];
#pragma unroll
    for (int other = 1; other < GROUPS; ++other)
      if (group == other) entry = held[other];
    return entry;
  }
};

}  // namespace sddmm
