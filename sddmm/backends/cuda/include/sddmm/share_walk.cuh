// A warp's walk over its share of nonzeros, row by row, by groups of lanes: each group has as many
// consecutive nonzeros as the others and works on a few of them at a time.
#pragma once

#include "sddmm/row_pieces.cuh"

namespace sddmm {

// The nonzeros of a pattern and the shares of its warps; see Arguments of the kernels.
struct SharedNonzeros {
  const int *rows, *cols, *perm;  // (nnz,), sorted by row; perm may be null
  const RowShare* shares;
  const int2* slots;  // null if no share cuts a row
};

// What a lane knows of the nonzero that it has loaded. row: -1 past the end of the group.
struct NonzeroIndex {
  int row, col, position;
};

// Pass is what is computed. It has
//   LANES, BATCH, THREADS      lanes of a group, nonzeros that it works on at a time, those of a block
//   Partial                    the sums of a row (row_pieces.cuh)
//   Extra                      what a lane loads of its nonzero beside the index
//   load_extra(index)
//   add(index, extra, batch, alike, partial, row, change_row)
//                              adds the BATCH nonzeros of each group that lanes batch, batch + 1, ...
//                              of the group have loaded. `alike`: all of them are of the rows that
//                              their groups sum. Else it calls change_row(row), by lanes of any
//                              groups, before it adds the first nonzero of another row.
//   store(row, partial)        stores a row's result, one without nonzeros too
//
// floats: shared memory for GroupPieces. number: that of the warp's share.
template <class Pass>
__device__ __forceinline__ void walk_share(Pass& pass, const SharedNonzeros& nonzeros, i64 number,
                                           float* floats,
                                           const WarpPieces<typename Pass::Partial, Pass::LANES>&
                                               warp_pieces) {
  using Partial = typename Pass::Partial;
  using Extra = typename Pass::Extra;
  constexpr int LANES = Pass::LANES, BATCH = Pass::BATCH, GROUPS = 32 / LANES;
  static_assert(LANES % BATCH == 0, "the lanes of a group load the indices of whole batches");
  const GroupPieces<Partial, LANES, Pass::THREADS> pieces{floats};
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / LANES;
  const int in_group = lane % LANES;

  const RowShare share = nonzeros.shares[number];
  const int all = static_cast<int>(share.end - share.begin);
  const int per_group = (all + GROUPS * BATCH - 1) / (GROUPS * BATCH) * BATCH;
  auto least = [](int a, int b) { return a < b ? a : b; };
  const int first = least(group * per_group, all), end = least(first + per_group, all);
  const i64 begin = share.begin + first;
  const int count = end - first;

  // The rows of the nonzero before the group's, of its first, and of that after its last.
  int before = share.before, row = -2, after = share.after;
  if (first > 0) before = nonzeros.rows[begin - 1];
  if (count > 0) row = nonzeros.rows[begin];
  if (end < all) after = nonzeros.rows[share.begin + end];
  const int cut_row = row == before ? row : -1;  // the group's first row, if it begins before

  // Rows without nonzeros before the group's first, and at the end of the warp's share.
  auto past = [&](int r) { return r >= share.first_row ? r + 1 : share.first_row; };
  if (row >= 0 && row != before)
    for (int r = past(before); r < row; ++r) pass.store(r, Partial());
  for (int r = past(share.last) + group; r < share.end_row; r += GROUPS) pass.store(r, Partial());

  Partial partial;
  auto change_row = [&](int next) {
    if (row == cut_row) {
      pieces.store(pieces.FIRST, partial);
    } else {
      pass.store(row, partial);
    }
    partial = Partial();
    while (++row < next) pass.store(row, partial);
  };

  auto load_index = [&](int at) {
    NonzeroIndex index{-1, 0, 0};
    if (at + in_group < count) {
      const i64 i = begin + at + in_group;
      index = {nonzeros.rows[i], nonzeros.cols[i], static_cast<int>(i)};
      if (nonzeros.perm != nullptr) index.position = nonzeros.perm[i];
    }
    return index;
  };
  // What is loaded of a nonzero depends on its index, which is therefore loaded a step earlier.
  NonzeroIndex next = load_index(0), second = load_index(LANES);
  Extra next_extra = pass.load_extra(next);
  const int longest = GROUPS == 1 ? count : least(per_group, all);
#pragma unroll 1
  for (int at = 0; at < longest; at += LANES) {
    const NonzeroIndex now = next;
    const Extra extra = next_extra;
    next = second;
    if (at + LANES < longest) next_extra = pass.load_extra(next);
    second = load_index(at + 2 * LANES);
#pragma unroll 1
    for (int batch = 0; batch < LANES && at + batch < longest; batch += BATCH) {
      const bool in_batch = in_group >= batch && in_group < batch + BATCH;
      const bool alike = __all_sync(FULL_MASK, !in_batch || now.row == row);
      pass.add(now, extra, batch, alike, partial, row, change_row);
    }
  }

  // What is left of the group's last row.
  const bool is_open = after == row;
  const bool is_first = row == cut_row || row < 0;
  const bool closes = cut_row >= 0 && !(is_first && is_open);
  if (is_first) {
    pieces.store(pieces.FIRST, partial);
  } else if (is_open) {
    pieces.store(pieces.LAST, partial);
  } else {
    pass.store(row, partial);
  }
  pieces.has_last(threadIdx.x) = !is_first && is_open;
  __syncwarp();

  // slots[number]: the numbers of the warp's pieces of the row that begins before its share, and of
  // the row that begins in its share and ends after it.
  if (closes) {  // the group's first row ends in it
    Partial piece = pieces.load(pieces.FIRST, threadIdx.x);
    if (pieces.merge_before(group, piece)) {
      pass.store(cut_row, piece);
    } else {
      warp_pieces.store(nonzeros.slots[number].x, piece);
    }
  }
  if (group == GROUPS - 1 && share.last == share.after && share.last >= 0) {  // the row goes on
    Partial piece;
    const bool begins = pieces.merge_before(GROUPS, piece);
    const int2 slots = nonzeros.slots[number];
    warp_pieces.store(begins ? slots.y : slots.x, piece);
  }
}

// The sum of x over the lanes of each group, in all of them.
template <int LANES>
__device__ __forceinline__ float group_sum(float x) {
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2)
    x += __shfl_xor_sync(FULL_MASK, x, distance);
  return x;
}

}  // namespace sddmm
