// The rows of a warp's consecutive nonzeros of a CSR pattern, and the checks of its indices, without
// a barrier of the block.
#pragma once

#include "gemm_core/numeric.cuh"
#include "sddmm/csr_rows.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

using gemm_core::i64;

// The rows whose first nonzeros a warp knows at a time, in shared memory, and how often it goes on to
// the next ones before it searches the row of each nonzero instead.
constexpr int ROW_WINDOW = 64, MAX_ROW_WINDOWS = 8;

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

// The number of rows of a window that begin at or before a nonzero.
__device__ __forceinline__ int count_begun(const int* first_nonzeros, int nonzero) {
  int begun = 0;
#pragma unroll
  for (int step = ROW_WINDOW / 2; step > 0; step /= 2)
    if (first_nonzeros[begun + step - 1] <= nonzero) begun += step;
  return begun + (first_nonzeros[begun] <= nonzero);
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

// Finds the rows of a warp's nonzeros: item j is nonzero begin + 32 j + lane. base: the row of nonzero
// `begin`, or one before it. window: ROW_WINDOW words of shared memory. Entries of crow may be any
// numbers: every row found is 0 .. m - 1.
template <int ITEMS, class IndexType>
__device__ __forceinline__ void find_rows(const IndexType* crow, int m, i64 nnz, i64 begin, int base,
                                          int* window, int (&row)[ITEMS]) {
  constexpr int WARP_ITEMS = 32 * ITEMS;
  const int lane = threadIdx.x % 32, last_row = m - 1;
  const i64 left = nnz - begin;
  const int last = static_cast<int>(left < WARP_ITEMS ? left : WARP_ITEMS) - 1;
#pragma unroll
  for (int& r : row) r = base;
  for (int windows = 0; base < last_row; ++windows) {
    if (windows == MAX_ROW_WINDOWS) {  // past many rows without nonzeros
#pragma unroll
      for (int j = 0; j < ITEMS; ++j)
        if (row[j] == base) row[j] = search_row(crow, base, last_row, begin + 32 * j + lane);
      return;
    }
    __syncwarp();  // all lanes have read the window before
#pragma unroll
    for (int after = lane; after < ROW_WINDOW; after += 32) {
      int first_nonzero = WARP_ITEMS;
      if (after < last_row - base) {
        const i64 first = crow[base + 1 + after];
        if (first < begin + WARP_ITEMS)
          first_nonzero = first <= begin ? 0 : static_cast<int>(first - begin);
      }
      window[after] = first_nonzero;
    }
    __syncwarp();
    if (window[0] > last) return;
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) row[j] += count_begun(window, 32 * j + lane);
    if (window[ROW_WINDOW - 1] > last) return;
    base = last_row - base > ROW_WINDOW ? base + ROW_WINDOW : last_row;
  }
}

}  // namespace sddmm
