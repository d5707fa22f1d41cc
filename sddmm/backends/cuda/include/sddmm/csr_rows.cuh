// The rows of a warp's consecutive nonzeros of a CSR pattern, and the checks of its indices, without
// a barrier of the block.
#pragma once

#include "gemm_core/numeric.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

using gemm_core::i64;

// Returns the last row of low .. high that begins at or before nonzero i. The lanes of a warp
// search together: each step narrows the range to a 128th.
template <class IndexType>
__device__ __forceinline__ int find_row(const IndexType* crow, int low, int high, i64 i) {
  constexpr int PROBES = 4;  // the number of loads of a lane that are in flight together
  while (low < high) {
    const int step = (high - low - 1) / (32 * PROBES) + 1;
    bool begins[PROBES];
#pragma unroll
    for (int j = 0; j < PROBES; ++j) {
      const int probe = j * 32 + static_cast<int>(threadIdx.x) % 32 + 1;
      const i64 row = low + static_cast<i64>(probe) * step;
      begins[j] = row <= high && crow[row] <= i;
    }
    int steps = 0;
#pragma unroll
    for (int j = 0; j < PROBES; ++j) steps += __popc(__ballot_sync(FULL_MASK, begins[j]));
    low += steps * step;
    high = high - low < step ? high : low + step - 1;
  }
  return low;
}

// The entries of crow that a lane loads at once, and how often the warp goes on to the next ones before
// it searches the row of each nonzero instead.
constexpr int ROW_PROBES = 4, MAX_ROW_WINDOWS = 8;

// Whether crow starts at 0, never falls and ends at nnz, as far as ITEMS entries from `begin` on,
// `distance` apart, and their successors tell.
template <int ITEMS, class IndexType>
__device__ __forceinline__ bool check_rows(const IndexType* crow, int m, i64 nnz, i64 begin,
                                           int distance) {
  IndexType first[ITEMS], end[ITEMS];
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const i64 i = begin + j * distance;
    first[j] = i <= m ? crow[i] : 0;
    end[j] = i < m ? crow[i + 1] : nnz;
  }
  bool valid = true;
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const i64 i = begin + j * distance;
    valid &= i > m || (first[j] <= end[j] && (i > 0 || first[j] == 0) && (i < m || first[j] == nnz));
  }
  return valid;
}

// The last row of low .. high that begins at or before nonzero i.
template <class IndexType>
__device__ __forceinline__ int search_row(const IndexType* crow, int low, int high, i64 i) {
  while (low < high) {
    const int middle = high - (high - low) / 2;
    if (crow[middle] <= i)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// Finds which row begins at each of a warp's nonzeros: starts[i], in shared memory, becomes the last row
// that begins at nonzero begin + i, -1 if none does. before: a row that begins before `begin`, -1 for
// none; no row up to it is found. Entries of crow may be any numbers: every row found is below m.
template <int ITEMS, class IndexType>
__device__ __forceinline__ void find_row_starts(const IndexType* crow, int m, i64 begin, int before,
                                                int* starts) {
  using u64 = unsigned long long;
  constexpr int WARP_ITEMS = 32 * ITEMS;
  const int lane = threadIdx.x % 32;
  __syncwarp();  // all lanes have read the starts before
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) starts[32 * j + lane] = -1;
  __syncwarp();
  i64 first_row = before + 1;
  for (int windows = 0; first_row < m; ++windows, first_row += 32 * ROW_PROBES) {
    if (windows == MAX_ROW_WINDOWS) {  // past many rows without nonzeros
      __syncwarp();
#pragma unroll
      for (int j = 0; j < ITEMS; ++j) {
        const i64 i = begin + 32 * j + lane;
        const int row = search_row(crow, before < 0 ? 0 : before, m - 1, i);
        starts[32 * j + lane] = crow[row] == i ? row : -1;
      }
      break;
    }
    i64 first[ROW_PROBES];
#pragma unroll
    for (int t = 0; t < ROW_PROBES; ++t) {
      const i64 row = first_row + 32 * t + lane;
      first[t] = row < m ? crow[row] : begin + WARP_ITEMS;
    }
#pragma unroll
    for (int t = 0; t < ROW_PROBES; ++t) {
      const u64 item = static_cast<u64>(first[t]) - static_cast<u64>(begin);
      if (item < WARP_ITEMS)
        atomicMax(starts + item, static_cast<int>(first_row) + 32 * t + lane);
    }
    if (__shfl_sync(FULL_MASK, first[ROW_PROBES - 1], 31) >= begin + WARP_ITEMS) break;
  }
  __syncwarp();
}

// The rows of a warp's consecutive nonzeros, N in each lane. starts: the rows that begin at them, -1 where
// none does; before: the row of the nonzero before them, which becomes that of the last of them.
template <int N>
__device__ __forceinline__ void find_rows(const int (&starts)[N], int& before, int (&rows)[N]) {
  const int lane = threadIdx.x % 32;
  int last = starts[0];
#pragma unroll
  for (int i = 1; i < N; ++i) last = starts[i] >= 0 ? starts[i] : last;
  const gemm_core::u32 begin_rows = __ballot_sync(FULL_MASK, last >= 0);
  const gemm_core::u32 of_lower_lanes = begin_rows & ~(FULL_MASK << lane);
  int row = before;
  if (begin_rows != 0) {
    const int last_of_lower = __shfl_sync(FULL_MASK, last, (31 - __clz(of_lower_lanes)) & 31);
    if (of_lower_lanes != 0) row = last_of_lower;
    before = __shfl_sync(FULL_MASK, last, 31 - __clz(begin_rows));
  }
#pragma unroll
  for (int i = 0; i < N; ++i) rows[i] = row = starts[i] >= 0 ? starts[i] : row;
}

}  // namespace sddmm
