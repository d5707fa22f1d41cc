// Equal shares of the nonzeros and the rows of a pattern.
#pragma once

#include "sddmm/search.cuh"

namespace sddmm {

// A range of nonzeros, begin .. end - 1, and of rows that are to be written if they are empty,
// first_row .. end_row - 1. before: the row of the nonzero before the range, -1 if there is none;
// last: that of the nonzero at end - 1; after: that of the nonzero at end, -1 if there is none.
struct RowShare {
  i64 begin, end;
  int first_row, end_row;
  int before, last, after;
};

// Share number `index` of a pattern of nnz nonzeros, sorted by row, and m rows: `size` of both.
// Nonzero i counts as number rows[i] + i, so that a row comes right after its last nonzero.
__device__ __forceinline__ RowShare row_share(const int* rows, i64 nnz, int m, i64 index,
                                              i64 size) {
  const i64 total = nnz + m;
  i64 first[2], low[2], high[2];
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    first[t] = (index + t) * size < total ? (index + t) * size : total;
    low[t] = first[t] > m ? first[t] - m : 0;
    high[t] = first[t] < nnz ? first[t] : nnz;
  }
  warp_lower_bound(low, high, [&](int t, i64 i) { return rows[i] + i >= first[t]; });
  const i64 begin = low[0], end = low[1];
  return {begin, end, static_cast<int>(first[0] - begin), static_cast<int>(first[1] - end),
          begin > 0 ? rows[begin - 1] : -1, end > 0 ? rows[end - 1] : -1,
          end < nnz ? rows[end] : -1};
}

}  // namespace sddmm
