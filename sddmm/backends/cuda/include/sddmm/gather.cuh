// Dot products of consecutive nonzeros by one warp, whatever their rows and columns.
#pragma once

#include "sddmm/row_dot.cuh"

namespace sddmm {

// Rows of an operand in global memory, `pitch` elements apart. LOAD_BYTES, NO_TAIL: see load_chunk.
// CHUNK_BYTES: of a chunk. HAS_TAIL: whether one may reach past a row's end.
template <class T, int LOAD_BYTES, bool NO_TAIL, int CHUNK_BYTES = 16>
struct GlobalRows {
  using Chunk = ChunkOf<CHUNK_BYTES>;
  const T* first;
  i64 pitch;
  int k;

  static constexpr bool HAS_TAIL = !NO_TAIL;
  struct Row {
    const T* elements;
    int k;
    __device__ __forceinline__ Chunk load(int chunk) const {
      return load_chunk<LOAD_BYTES, NO_TAIL, false, CHUNK_BYTES>(
          elements, chunk * CHUNK_ELEMENTS<T, Chunk>, k);
    }
  };
  __device__ __forceinline__ Row row(int i) const { return {first + i * pitch, k}; }
};

// The same, of which an index past the last row loads the last: values are computed before all indices
// are known to be valid, and are discarded if they are not.
template <class T, int LOAD_BYTES, bool NO_TAIL, int CHUNK_BYTES = 16>
struct ClampedRows : GlobalRows<T, LOAD_BYTES, NO_TAIL, CHUNK_BYTES> {
  using Base = GlobalRows<T, LOAD_BYTES, NO_TAIL, CHUNK_BYTES>;
  int last;
  __device__ __forceinline__ typename Base::Row row(int i) const {
    const bool exists = static_cast<unsigned>(i) <= static_cast<unsigned>(last);
    return Base::row(exists ? i : last);
  }
};

// The row ids of nonzeros that are all of one row.
struct OneRow {
  int row;
  __device__ __forceinline__ int operator[](i64) const { return row; }
};
template <class RowIds>
constexpr bool IS_ONE_ROW = false;
template <>
constexpr bool IS_ONE_ROW<OneRow> = true;

// The number of bytes of a row that the lanes of a nonzero load at once, a chunk of 16 each.
constexpr int STEP_BYTES = LANES_PER_NONZERO * 16;

// The number of bytes of a chunk where one pass loads so many of a row: eight where all lanes would
// not have sixteen.
template <int PASS_BYTES>
constexpr int CHUNK_BYTES_OF = PASS_BYTES < STEP_BYTES ? PASS_BYTES / LANES_PER_NONZERO : 16;

// The number of nonzeros that a warp computes at once.
template <int BATCHES>
constexpr int GROUP_NONZEROS = BATCH_NONZEROS * BATCHES;

// Calls store(position, sum) for each nonzero begin .. end - 1, and prefetch(position) before its sum
// is computed. It takes a group of nonzeros at a time; the groups begin `stride` nonzeros apart, so that
// several warps can take turns. Nonzero i is at (rows[i], cols[i]), its rows are rows_a.row(rows[i]) and
// rows_b.row(cols[i]), and its position is perm[i], or i if perm is null.
//
// rows, cols: pointers, or what is indexed as they are. Index: int takes fewer registers than i64, where it holds `end`.
// BATCHES: the number of batches in a group. PASS_BYTES: the number of bytes of a row that the lanes of
// a nonzero load in one pass; longer rows take several. ONE_PASS: whether no row does. SWAPPED: odd
// nonzeros load the two halves of 128 bytes in the opposite order. L1 serves eight lanes at once, two
// nonzeros; what they find there is then in different banks.
template <class T, int BATCHES, int PASS_BYTES, bool ONE_PASS, bool SWAPPED, class RowsA,
          class RowsB, class RowIds, class ColumnIds, class Index, class Prefetch, class Store>
__device__ __forceinline__ void gather(const RowsA& rows_a, const RowsB& rows_b, const RowIds& rows,
                                       const ColumnIds& cols, const int* perm, Index begin, Index end,
                                       int stride, int k, const Prefetch& prefetch,
                                       const Store& store) {
  constexpr int GROUP = GROUP_NONZEROS<BATCHES>;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  using Chunk = typename RowsB::Chunk;
  constexpr int LOADS_PER_PASS = PASS_BYTES / (LANES_PER_NONZERO * sizeof(Chunk));
  static_assert(LOADS_PER_PASS * LANES_PER_NONZERO * sizeof(Chunk) == PASS_BYTES,
                "every lane loads equally many chunks");
  constexpr int PASS_ELEMENTS = PASS_BYTES / sizeof(T);
  const int passes = ONE_PASS ? 1 : (k + PASS_ELEMENTS - 1) / PASS_ELEMENTS;
  static_assert(!SWAPPED || LOADS_PER_PASS % 2 == 0, "there are two halves to swap");
  const int swap = SWAPPED ? g % 2 * LANES_PER_NONZERO : 0;
  auto chunk_of = [&](int first_chunk, int s) {
    return (s % 2 ? first_chunk - swap : first_chunk + swap) + LANES_PER_NONZERO * s;
  };

  // Past the end the last nonzero is loaded again: it costs no memory traffic and is not stored.
  auto load_index = [&](const auto& indices, Index group) -> int {
    const Index i = group + lane % GROUP;
    return indices[i < end ? i : end - 1];
  };
  int row = load_index(rows, begin), col = load_index(cols, begin);
  int position = perm == nullptr ? 0 : load_index(perm, begin);
  // The row of A that the last group used, if all its nonzeros were of one row.
  Chunk cached_a[LOADS_PER_PASS];
  int cached_row = -1;

  for (Index group = begin; group < end; group += stride) {
    const int group_row = row, group_col = col;
    auto row_of_b = [&](int j) {
      return rows_b.row(__shfl_sync(FULL_MASK, group_col, BATCH_NONZEROS * j + g));
    };
    typename RowsB::Row b_row[BATCHES];
    // Rows of several passes leave no registers for the addresses this early.
    if constexpr (ONE_PASS)
#pragma unroll
      for (int j = 0; j < BATCHES; ++j) b_row[j] = row_of_b(j);
    const int first_row = __shfl_sync(FULL_MASK, row, 0);
    const bool same_row = IS_ONE_ROW<RowIds> || __all_sync(FULL_MASK, row == first_row);
    const Index group_position = perm == nullptr ? group + lane : position;
    if (lane < GROUP && group + lane < end) prefetch(group_position);

    // Prefetch the indices of the next group.
    if (group + stride < end) {
      row = load_index(rows, group + stride), col = load_index(cols, group + stride);
      if (perm != nullptr) position = load_index(perm, group + stride);
    }

    RowDot<T, BATCHES> dot;
    if (same_row) {
      const typename RowsA::Row a_row = rows_a.row(first_row);
      if constexpr (!ONE_PASS)
#pragma unroll
        for (int j = 0; j < BATCHES; ++j) b_row[j] = row_of_b(j);
#pragma unroll 1
      for (int pass = 0; pass < passes; ++pass) {
        const int first_chunk = pass * LOADS_PER_PASS * LANES_PER_NONZERO + t;
        auto load_a = [&] {
          if (ONE_PASS && cached_row == first_row) return;
#pragma unroll
          for (int s = 0; s < LOADS_PER_PASS; ++s)
            cached_a[s] = a_row.load(chunk_of(first_chunk, s));
        };
        // Before the rows of B or after them, as the compiler has registers for.
        constexpr bool A_FIRST = RowsA::HAS_TAIL || sizeof(T) > 2;
        if constexpr (A_FIRST) load_a();
        Chunk b[LOADS_PER_PASS][BATCHES];
#pragma unroll
        for (int s = 0; s < LOADS_PER_PASS; ++s)
#pragma unroll
          for (int j = 0; j < BATCHES; ++j)
            b[s][j] = b_row[j].load(chunk_of(first_chunk, s));
        if constexpr (!A_FIRST) load_a();
#pragma unroll
        for (int s = 0; s < LOADS_PER_PASS; ++s) dot.add_shared(b[s], cached_a[s]);
      }
      cached_row = first_row;
    } else {
      // The number of batches whose loads are in flight together: as many bytes of global memory as
      // above, or as registers allow.
      constexpr int BATCHES_IN_FLIGHT =
          LOADS_PER_PASS == 1 ? BATCHES : BATCHES / 2;
#pragma unroll
      for (int first = 0; first < BATCHES; first += BATCHES_IN_FLIGHT) {
        typename RowsA::Row a_row[BATCHES_IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < BATCHES_IN_FLIGHT; ++j) {
          a_row[j] =
              rows_a.row(__shfl_sync(FULL_MASK, group_row, BATCH_NONZEROS * (first + j) + g));
          if constexpr (!ONE_PASS) b_row[first + j] = row_of_b(first + j);
        }
        for (int pass = 0; pass < passes; ++pass) {
          const int first_chunk = pass * LOADS_PER_PASS * LANES_PER_NONZERO + t;
          Chunk a[BATCHES_IN_FLIGHT][LOADS_PER_PASS], b[BATCHES_IN_FLIGHT][LOADS_PER_PASS];
#pragma unroll
          for (int j = 0; j < BATCHES_IN_FLIGHT; ++j)
#pragma unroll
            for (int s = 0; s < LOADS_PER_PASS; ++s) {
              b[j][s] = b_row[first + j].load(chunk_of(first_chunk, s));
              a[j][s] = a_row[j].load(chunk_of(first_chunk, s));
            }
#pragma unroll
          for (int j = 0; j < BATCHES_IN_FLIGHT; ++j) dot.add(first + j, b[j], a[j]);
        }
      }
      // Unless rows are unsorted the next group has another row, so no registers keep this one.
      cached_row = -1;
#pragma unroll
      for (int s = 0; s < LOADS_PER_PASS; ++s) cached_a[s] = {};
    }

    // Reduce, then give lane l the sum of nonzero l of the group.
    dot.finish();
    Sum<T> own_sum = 0;
#pragma unroll
    for (int j = 0; j < BATCHES; ++j) {
      const Sum<T> sum =
          __shfl_sync(FULL_MASK, dot.sum(j), RowDot<T, BATCHES>::owner_lane(lane % 8));
      if (lane / 8 == j) own_sum = sum;
    }
    if (lane < GROUP && group + lane < end) store(group_position, own_sum);
  }
}

}  // namespace sddmm
