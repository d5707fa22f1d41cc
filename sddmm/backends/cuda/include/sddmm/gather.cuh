// Sums of consecutive nonzeros by one warp, whatever their rows and columns.
#pragma once

#include "sddmm/row_dot.cuh"

namespace sddmm {

// Rows of an operand in global memory, `pitch` elements apart. BYTES, WHOLE: see load_chunk. NEAR:
// whether rows lie in shared memory. GUARDED: whether a chunk may be in part beyond a row's end.
template <class T, int BYTES, bool WHOLE>
struct GlobalRows {
  const T* first;
  i64 pitch;
  int k;

  static constexpr bool NEAR = false, GUARDED = !WHOLE;
  struct Row {
    const T* at;
    int k;
    // Elements 16 / sizeof(T) * chunk and on.
    __device__ __forceinline__ Chunk load(int chunk) const {
      return load_chunk<BYTES, WHOLE>(at, chunk * static_cast<int>(16 / sizeof(T)), k);
    }
  };
  __device__ __forceinline__ Row row(int i) const { return {first + i * pitch, k}; }
};

// The nonzeros begin .. end, 8 * BATCHES at a time. (rows[i], cols[i]) is the position of nonzero i,
// whose rows come from rows_a and rows_b, and order[i], or i if order is null, where its sum is
// stored. Rows of k elements go through registers in passes of SEGMENTS times 64 bytes; SINGLE: in
// one. TURNED: odd nonzeros take each two segments in turned order, so that rows in shared memory,
// two of which are read at once, lie in different banks.
template <class T, int BATCHES, int SEGMENTS, bool SINGLE, bool TURNED, class RowsA, class RowsB,
          class Store>
__device__ __forceinline__ void gather(const RowsA& rows_a, const RowsB& rows_b, const int* rows,
                                       const int* cols, const int* order, i64 begin, i64 end,
                                       int k_passes, const Store& store) {
  constexpr int GROUP = 8 * BATCHES;
  constexpr u32 ALL = 0xffffffff;
  static_assert(!TURNED || SEGMENTS % 2 == 0, "segments take turns in pairs");
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int turn = TURNED ? g % 2 : 0;
  const int passes = SINGLE ? 1 : k_passes;
  // Beyond the end: the last nonzero again, which costs no memory traffic and is not stored.
  auto index = [&](const int* indices, i64 p) {
    const i64 i = p + lane % GROUP;
    return indices[i < end ? i : end - 1];
  };
  int row = index(rows, begin), col = index(cols, begin);
  int place = order == nullptr ? 0 : index(order, begin);
  Chunk kept[SEGMENTS];  // the row of A of the group before, if it had one
  int kept_row = -1;
  for (i64 p = begin; p < end; p += GROUP) {
    const int own_row = row, own_col = col;
    auto row_of_b = [&](int j) { return rows_b.row(__shfl_sync(ALL, own_col, 8 * j + g)); };
    typename RowsB::Row b_row[BATCHES];
    // Early, but for rows of several passes, which leave no registers for it.
    if constexpr (SINGLE)
#pragma unroll
      for (int j = 0; j < BATCHES; ++j) b_row[j] = row_of_b(j);
    const int first_row = __shfl_sync(ALL, row, 0);
    const bool one_row = __all_sync(ALL, row == first_row);
    const i64 own_place = order == nullptr ? p + lane : place;
    if (p + GROUP < end) {
      row = index(rows, p + GROUP), col = index(cols, p + GROUP);
      if (order != nullptr) place = index(order, p + GROUP);
    }
    RowDot<T, BATCHES> dot;
    if (one_row) {
      const typename RowsA::Row a_row = rows_a.row(first_row);
      if constexpr (!SINGLE)
#pragma unroll
        for (int j = 0; j < BATCHES; ++j) b_row[j] = row_of_b(j);
      for (int pass = 0; pass < passes; ++pass) {
        const int chunk = pass * SEGMENTS * 4 + t;
        auto keep_row = [&] {
          if (SINGLE && kept_row == first_row) return;
#pragma unroll
          for (int s = 0; s < SEGMENTS; ++s) kept[s] = a_row.load(chunk + 4 * (s ^ turn));
        };
        // Before the rows of B or after them: as the compiler has enough registers for.
        constexpr bool FIRST = RowsA::GUARDED || sizeof(T) > 2;
        if constexpr (FIRST) keep_row();
        Chunk b[SEGMENTS][BATCHES];
#pragma unroll
        for (int s = 0; s < SEGMENTS; ++s)
#pragma unroll
          for (int j = 0; j < BATCHES; ++j) b[s][j] = b_row[j].load(chunk + 4 * (s ^ turn));
        if constexpr (!FIRST) keep_row();
#pragma unroll
        for (int s = 0; s < SEGMENTS; ++s) dot.add_shared(b[s], kept[s]);
      }
      kept_row = first_row;
    } else {
      // As many loads from global memory in flight as above, or as registers allow.
      constexpr int EACH = SEGMENTS == 1 || (RowsB::NEAR && SINGLE) ? BATCHES : BATCHES / 2;
#pragma unroll
      for (int first = 0; first < BATCHES; first += EACH) {
        typename RowsA::Row a_row[EACH];
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
          a_row[j] = rows_a.row(__shfl_sync(ALL, own_row, 8 * (first + j) + g));
          if constexpr (!SINGLE) b_row[first + j] = row_of_b(first + j);
        }
        for (int pass = 0; pass < passes; ++pass) {
          const int chunk = pass * SEGMENTS * 4 + t;
          Chunk a[EACH][SEGMENTS], b[EACH][SEGMENTS];
#pragma unroll
          for (int j = 0; j < EACH; ++j)
#pragma unroll
            for (int s = 0; s < SEGMENTS; ++s) {
              b[j][s] = b_row[first + j].load(chunk + 4 * (s ^ turn));
              a[j][s] = a_row[j].load(chunk + 4 * (s ^ turn));
            }
#pragma unroll
          for (int j = 0; j < EACH; ++j) dot.add(first + j, b[j], a[j]);
        }
      }
      // The next group's row is another one, unless rows are unsorted; so no register keeps it.
      kept_row = -1;
#pragma unroll
      for (int s = 0; s < SEGMENTS; ++s) kept[s] = {};
    }
    dot.finish();
    Sum<T> mine = 0;
#pragma unroll
    for (int j = 0; j < BATCHES; ++j) {
      const Sum<T> sum = __shfl_sync(ALL, dot.sum(j), RowDot<T, BATCHES>::holder(lane % 8));
      if (lane / 8 == j) mine = sum;
    }
    if (lane < GROUP && p + lane < end) store(own_place, mine);
  }
}

}  // namespace sddmm
