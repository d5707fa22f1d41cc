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

// The number of bytes of a chunk, of which each of the LANES of a nonzero loads one at once: eight where
// all lanes would not have sixteen.
template <int LANES, int PASS_BYTES>
constexpr int CHUNK_BYTES_OF = PASS_BYTES < LANES * 16 ? PASS_BYTES / LANES : 16;

// The number of nonzeros that a warp computes at once.
template <int LANES, int BATCHES>
constexpr int GROUP_NONZEROS = 32 / LANES * BATCHES;

// Returns the sum of nonzero l of a group to lane l. LANES: those that share a nonzero of each batch.
template <int LANES, class T, int BATCHES>
__device__ __forceinline__ Sum<T> sum_of_lane(const RowDot<T, BATCHES>& dot) {
  static_assert(LANES == 4 || LANES == 8 || LANES == 16, "rows are loaded by so many");
  constexpr int BATCH = 32 / LANES;
  const int lane = threadIdx.x % 32, batch = lane / BATCH, nonzero = lane % BATCH;
  if constexpr (sizeof(T) == 2) {
    // Each four lanes have a sum, of a part of k, in their owner_lane: 0, 4, 9, 13, 18, 22, 27, 31.
    // Those of a four and the next differ in the bits of 4, those of two fours and the next two in 9.
    constexpr int FOURS = LANES / 4;
    Sum<T> own = 0;
#pragma unroll
    for (int j = 0; j < BATCHES; ++j) {
      Sum<T> sum = dot.sum(j);
      if constexpr (FOURS >= 2) sum += __shfl_xor_sync(FULL_MASK, sum, 4);
      if constexpr (FOURS == 4) sum += __shfl_xor_sync(FULL_MASK, sum, 9);
      sum = __shfl_sync(FULL_MASK, sum, RowDot<T, BATCHES>::owner_lane(FOURS * nonzero));
      if (batch == j) own = sum;
    }
    return own;
  } else {
    // Lanes halve the batches among them while they add up.
    static_assert(BATCHES <= LANES, "each lane ends with the sum of one batch");
    Sum<T> sums[BATCHES];
#pragma unroll
    for (int j = 0; j < BATCHES; ++j) sums[j] = dot.sum(j);
    int kept = BATCHES;
#pragma unroll
    for (int distance = LANES / 2; distance >= 1; distance /= 2) {
      const bool upper = lane & distance;
      if (kept == 1) {
        sums[0] += __shfl_xor_sync(FULL_MASK, sums[0], distance);
        continue;
      }
      kept /= 2;
#pragma unroll
      for (int j = 0; j < kept; ++j) {
        const Sum<T> passed = __shfl_xor_sync(FULL_MASK, upper ? sums[j] : sums[j + kept], distance);
        sums[j] = (upper ? sums[j + kept] : sums[j]) + passed;
      }
    }
    return __shfl_sync(FULL_MASK, sums[0], nonzero * LANES + batch * (LANES / BATCHES));
  }
}

// Calls store(position, sum) for each nonzero begin .. end - 1, and prefetch(position) before its sum
// is computed. It takes a group of nonzeros at a time; the groups begin `stride` nonzeros apart, so that
// several warps can take turns. Nonzero i is at (rows[i], cols[i]), its rows are rows_a.row(rows[i]) and
// rows_b.row(cols[i]), and its position is perm[i], or i if perm is null.
//
// rows, cols: pointers, or what is indexed as they are. Index: int takes fewer registers than i64, where
// it holds `end`. LANES: the number of lanes that load the rows of a nonzero. BATCHES: the number of
// batches in a group, each of as many nonzeros as a warp has such lanes. PASS_BYTES: the number of bytes
// of a row that the lanes of a nonzero load in one pass; longer rows take several. ONE_PASS: whether no
// row does. SWAPPED: the four lanes of odd nonzeros load the two halves of 128 bytes in the opposite
// order. L1 serves eight lanes at once; what two nonzeros find there is then in different banks.
template <class T, int LANES, int BATCHES, int PASS_BYTES, bool ONE_PASS, bool SWAPPED, class RowsA,
          class RowsB, class RowIds, class ColumnIds, class Index, class Prefetch, class Store>
__device__ __forceinline__ void gather(const RowsA& rows_a, const RowsB& rows_b, const RowIds& rows,
                                       const ColumnIds& cols, const int* perm, Index begin, Index end,
                                       int stride, int k, const Prefetch& prefetch,
                                       const Store& store) {
  constexpr int BATCH = 32 / LANES, GROUP = GROUP_NONZEROS<LANES, BATCHES>;
  static_assert(GROUP <= 32, "a lane stores one sum");
  const int lane = threadIdx.x % 32, g = lane / LANES, t = lane % LANES;
  using Chunk = typename RowsB::Chunk;
  constexpr int LOADS_PER_PASS = PASS_BYTES / (LANES * sizeof(Chunk));
  static_assert(LOADS_PER_PASS * LANES * sizeof(Chunk) == PASS_BYTES,
                "every lane loads equally many chunks");
  constexpr int PASS_ELEMENTS = PASS_BYTES / sizeof(T);
  const int passes = ONE_PASS ? 1 : (k + PASS_ELEMENTS - 1) / PASS_ELEMENTS;
  static_assert(!SWAPPED || (LANES == 4 && LOADS_PER_PASS % 2 == 0), "there are two halves to swap");
  const int swap = SWAPPED ? g % 2 * LANES : 0;
  auto chunk_of = [&](int first_chunk, int s) {
    return (s % 2 ? first_chunk - swap : first_chunk + swap) + LANES * s;
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
      return rows_b.row(__shfl_sync(FULL_MASK, group_col, BATCH * j + g));
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
        const int first_chunk = pass * LOADS_PER_PASS * LANES + t;
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
              rows_a.row(__shfl_sync(FULL_MASK, group_row, BATCH * (first + j) + g));
          if constexpr (!ONE_PASS) b_row[first + j] = row_of_b(first + j);
        }
        for (int pass = 0; pass < passes; ++pass) {
          const int first_chunk = pass * LOADS_PER_PASS * LANES + t;
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

    const Sum<T> own_sum = sum_of_lane<LANES>(dot);
    if (lane < GROUP && group + lane < end) store(group_position, own_sum);
  }
}

}  // namespace sddmm
