// A warp's walk over its share of nonzeros, row by row, by groups of lanes: each group has as many
// consecutive nonzeros as the others and works on a few of them at a time.
#pragma once

#include "sddmm/row_pieces.cuh"

namespace sddmm {

// The nonzeros of a pattern and the shares of its warps; see Arguments of the kernels.
struct SharedNonzeros {
  const int *rows, *cols, *perm;  // (nnz,), sorted by row; perm may be null
  const RowShare* shares;
  const int2* slots;  // of shares that cut a row
};

// What a lane knows of a nonzero of its group: its position in S, and its number by row. row: -1 past
// the end of the group.
struct NonzeroIndex {
  int row, col, position, number;
};

// The nonzeros that a group works on at a time: those of one row, from its next one on, up to BATCH.
// Nonzero j of them is the one of lane lane_of(j).
template <int LANES>
struct RowBatch {
  int size;      // 0 past the end of the group, -1 past that of all groups
  int first;     // lane_of(0), but for multiples of LANES
  bool has_own;  // whether the nonzero of this lane is in it
  NonzeroIndex own;

  __device__ __forceinline__ int lane_of(int j) const { return group_lane<LANES>(first + j); }
};

// Pass is what is computed. It has
//   LANES, BATCH               lanes of a group, nonzeros that it works on at a time
//   THREADS, SHARED_BYTES      threads and bytes of shared memory of a block
//   Partial                    the sums of a row (row_pieces.cuh)
//   begin_row(row)             starts the loads of what belongs to the row that batches are now of
//   Loads, load(batch)         starts the loads of what belongs to the nonzeros of a batch
//   add(batch, loads, partial) adds them; called by all lanes
//   store(row, partial)        stores a row's result, one without nonzeros too
//
// floats: shared memory for GroupPieces. number: that of the warp's share. new_pieces: returns the
// WarpPieces of the head; called when all nonzeros are summed, and registers are free.
template <class Pass, class NewPieces>
__device__ __forceinline__ void walk_share(Pass& pass, const SharedNonzeros& nonzeros, int number,
                                           float* floats, const NewPieces& new_pieces) {
  using Partial = typename Pass::Partial;
  constexpr int LANES = Pass::LANES, BATCH = Pass::BATCH, GROUPS = 32 / LANES;
  static_assert(BATCH <= LANES, "the lanes of a group hold the indices of a batch");
  const GroupPieces<Partial, LANES, Pass::THREADS> pieces{floats};
  const int lane = static_cast<int>(threadIdx.x % 32), group = lane / LANES;
  const int in_group = lane % LANES;

  const RowShare share = nonzeros.shares[number];
  const int all = static_cast<int>(share.end - share.begin);
  const int per_group = (all + GROUPS - 1) / GROUPS;
  auto least = [](int a, int b) { return a < b ? a : b; };
  const int first = least(group * per_group, all), end = least(first + per_group, all);
  const i64 begin = share.begin + first;
  const int count = end - first;

  auto load_index = [&](int at) {
    NonzeroIndex index{-1, 0, 0, 0};
    if (at < count) {
      const u32 i = static_cast<u32>(begin) + at;
      const int number = static_cast<int>(i);
      index = {nonzeros.rows[i], nonzeros.cols[i], number, number};
      if (nonzeros.perm != nullptr) index.position = nonzeros.perm[i];
    }
    return index;
  };
  // The lanes of a group hold the indices of its next LANES nonzeros, from `first_left` on: each lane
  // that of nonzero `at`, and, loaded a step earlier, that of nonzero at + LANES.
  // They are in flight while the rows before and after the group's nonzeros are read.
  int first_left = 0, at = in_group;
  NonzeroIndex now = load_index(at), next = load_index(at + LANES);

  // The rows of the nonzero before the group's, of its first and its last, and of that after them.
  int before = share.before, row = -2, last_row = -2, after = share.after;
  if (first > 0) before = nonzeros.rows[begin - 1];
  if (count > 0) row = nonzeros.rows[begin], last_row = nonzeros.rows[begin + count - 1];
  if (end < all) after = nonzeros.rows[share.begin + end];
  const int cut_row = row == before ? row : -1;  // the group's first row, if it begins before
  // Whether the group's last row goes on after it, and is its first row, as a piece.
  const bool is_open = after == last_row, is_first = last_row == cut_row || last_row < 0;
  const bool closes = cut_row >= 0 && !(is_first && is_open);
  const bool goes_on = group == GROUPS - 1 && share.last == share.after && share.last >= 0;
  // In shared memory until all nonzeros are summed: the loop needs the registers.
  constexpr int IS_OPEN = 2, IS_FIRST = 4, CLOSES = 8, GOES_ON = 16;
  pieces.ends(threadIdx.x) = (!is_first && is_open ? pieces.HAS_LAST : 0) |
                             (is_open ? IS_OPEN : 0) | (is_first ? IS_FIRST : 0) |
                             (closes ? CLOSES : 0) | (goes_on ? GOES_ON : 0);

  // Rows without nonzeros before the group's first, and at the end of the warp's share.
  auto past = [&](int r) { return r >= share.first_row ? r + 1 : share.first_row; };
  if (row >= 0 && row != before)
    for (int r = past(before); r < row; ++r) pass.store(r, Partial());
  for (int r = past(share.last) + group; r < share.end_row; r += GROUPS) pass.store(r, Partial());

  Partial partial;
  // Stores the row that is summed, and those without nonzeros up to `until`.
  auto finish_row = [&](int until) {
    bool is_cut = row == cut_row;
    do {
      if (is_cut) {
        pieces.store(pieces.FIRST, partial);
      } else {
        pass.store(row, partial);
      }
      is_cut = false;
      partial = Partial();
    } while (++row < until);
  };

  const u32 group_lanes = FULL_MASK >> (32 - LANES) << (group * LANES);
  if (count > 0) pass.begin_row(row);
  // The nonzeros that come next, whose row is left in `batch_row`; none in any group: size -1.
  auto next_batch = [&](int& batch_row) {
    batch_row = __shfl_sync(FULL_MASK, now.row, group_lane<LANES>(first_left));
    const bool in_batch = now.row == batch_row && now.row >= 0 && at - first_left < BATCH;
    const u32 in_batches = __ballot_sync(FULL_MASK, in_batch);
    const int size = in_batches == 0 ? -1 : __popc(in_batches & group_lanes);
    return RowBatch<LANES>{size, first_left, in_batch, now};
  };
  // Goes on to the indices behind a batch.
  auto pass_over = [&](const RowBatch<LANES>& batch) {
    if (batch.has_own) {
      now = next;
      at += LANES;
      next = load_index(at + LANES);
    }
    first_left += batch.size;
  };
#pragma unroll 1
  while (true) {
    int batch_row;
    const RowBatch<LANES> batch = next_batch(batch_row);
    if (batch.size < 0) break;
    const bool begins_row = batch.size > 0 && batch_row != row;
    if (begins_row) pass.begin_row(batch_row);
    const typename Pass::Loads loads = pass.load(batch);
    if (begins_row) finish_row(batch_row);  // while they are in flight
    pass_over(batch);
    pass.add(batch, loads, partial);
  }

  // What is left of the group's last row.
  const int ends = pieces.ends(threadIdx.x);
  if (ends & IS_FIRST) {
    pieces.store(pieces.FIRST, partial);
  } else if (ends & IS_OPEN) {
    pieces.store(pieces.LAST, partial);
  } else {
    pass.store(row, partial);
  }
  __syncwarp();

  const WarpPieces<Partial, LANES> warp_pieces = new_pieces();
  // slots[number]: the numbers of the warp's pieces of the row that begins before its share, and of
  // the row that begins in its share and ends after it.
  if (ends & CLOSES) {  // the group's first row ends in it
    Partial piece = pieces.load(pieces.FIRST, threadIdx.x);
    if (pieces.merge_before(group, piece)) {
      pass.store(cut_row, piece);
    } else {
      warp_pieces.store(nonzeros.slots[number].x, piece);
    }
  }
  if (ends & GOES_ON) {
    Partial piece;
    const bool begins = pieces.merge_before(GROUPS, piece);
    const int2 slots = nonzeros.slots[number];
    warp_pieces.store(begins ? slots.y : slots.x, piece);
  }
}

// The whole of a launch whose warps walk their shares; heads begin with `first_head`. Arguments has
// shares_per_head, pieces_per_head, and what SharedNonzeros and WarpPieces take. Pass(p, head) is what
// is computed of a head. floats: shared memory for GroupPieces.
template <class Pass, class Arguments>
__device__ __forceinline__ void walk_shares(const Arguments& p, int first_head, float* floats) {
  using Partial = typename Pass::Partial;
  constexpr int LANES = Pass::LANES, WARPS = Pass::THREADS / 32;
  static_assert(GroupPieces<Partial, LANES, Pass::THREADS>::BYTES <= Pass::SHARED_BYTES, "");
  const int blocks = (p.shares_per_head + WARPS - 1) / WARPS, in_launch = blockIdx.x / blocks;
  const int share = (blockIdx.x - in_launch * blocks) * WARPS + threadIdx.x / 32;
  if (share >= p.shares_per_head) return;
  const int head = first_head + in_launch;
  Pass pass(p, head);
  auto new_pieces = [&] {
    const i64 head_pieces = static_cast<i64>(head) * p.pieces_per_head;
    return WarpPieces<Partial, LANES>{p.pieces + head_pieces * (Partial::COUNT * LANES)};
  };
  walk_share(pass, SharedNonzeros{p.rows, p.cols, p.perm, p.shares, p.slots}, share, floats,
             new_pieces);
}

// The whole of the launch after it, whose blocks merge the pieces of a cut row each; heads begin with
// 0. Arguments also has cut_rows and cut_rows_per_head.
template <class Pass, class Arguments>
__device__ __forceinline__ void merge_cut_rows(const Arguments& p, float* floats) {
  using Partial = typename Pass::Partial;
  constexpr int LANES = Pass::LANES;
  const int head = blockIdx.x / p.cut_rows_per_head;
  const CutRow cut = p.cut_rows[blockIdx.x - head * p.cut_rows_per_head];
  const WarpPieces<Partial, LANES> pieces{p.pieces};
  const i64 first = static_cast<i64>(head) * p.pieces_per_head + cut.first;
  const Partial merged =
      merge_pieces<Partial, LANES, Pass::THREADS>(pieces, first, cut.count, floats);
  if (threadIdx.x < LANES) Pass(p, head).store(cut.row, merged);
}

// The body of a kernel: the launch that walks shares, or, with MERGES, the one after it.
template <class Pass, bool MERGES, class Arguments>
__device__ __forceinline__ void run_launch(const Arguments& p, int first_head,
                                           unsigned char* shared) {
  float* const floats = reinterpret_cast<float*>(shared);
  if constexpr (MERGES) {
    merge_cut_rows<Pass>(p, floats);
  } else {
    walk_shares<Pass>(p, first_head, floats);
  }
}

}  // namespace sddmm
