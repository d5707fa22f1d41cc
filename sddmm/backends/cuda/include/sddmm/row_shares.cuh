// Equal shares of the nonzeros and the rows of a pattern, one for each warp.
#pragma once

#include "sddmm/value.cuh"

namespace sddmm {

// A range of nonzeros, begin .. end - 1, and of rows that are to be written if they are empty,
// first_row .. end_row - 1. before: the row of the nonzero before the range, -1 if there is none;
// last: that of the nonzero at end - 1; after: that of the nonzero at end, -1 if there is none.
struct alignas(16) RowShare {
  i64 begin, end;
  int first_row, end_row;
  int before, last, after;
};
static_assert(sizeof(RowShare) == 48, "spmm_shares/host.py: SHARE_BYTES");

// A row that shares cut: its pieces first .. first + count - 1, one of each share in order.
struct CutRow {
  int row, first, count;
};
static_assert(sizeof(CutRow) == 12, "spmm_shares/host.py: CUT_ROW_BYTES");

}  // namespace sddmm
