// Sums over rows that several groups of lanes, or several warps, work on: each leaves a piece of the
// row, and pieces are merged in a fixed order.
#pragma once

#include "sddmm/row_shares.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

// A piece is a Partial: what a group has of a row, the same for all lanes or a part in each. It has
//   COUNT          the number of floats of a lane
//   Partial()      of no nonzeros
//   merge(other)   adds the nonzeros of `other`, which come later in the row
//   each(use)      calls use(i, x) for float x number i

// What the groups of a warp leave for each other, in shared memory: of each group its piece of the
// row that begins before it (FIRST) and of the row that begins in it and ends after it (LAST).
// A group without nonzeros leaves an empty FIRST.
template <class Partial, int LANES, int THREADS>
struct GroupPieces {
  static constexpr int FIRST = 0, LAST = 1, HAS_LAST = 1;
  static constexpr int BYTES = (2 * Partial::COUNT + 1) * THREADS * 4;
  float* floats;

  __device__ __forceinline__ float& at(int which, int i, int thread) const {
    return floats[(which * Partial::COUNT + i) * THREADS + thread];
  }
  // HAS_LAST if a group leaves a LAST, and other bits of walk_share; a word for each of its lanes.
  __device__ __forceinline__ int& ends(int thread) const {
    return reinterpret_cast<int*>(floats + 2 * Partial::COUNT * THREADS)[thread];
  }
  __device__ __forceinline__ void store(int which, Partial partial) const {
    partial.each([&](int i, float& x) { at(which, i, threadIdx.x) = x; });
  }
  __device__ __forceinline__ Partial load(int which, int thread) const {
    Partial partial;
    partial.each([&](int i, float& x) { x = at(which, i, thread); });
    return partial;
  }
  // Merges what the groups of this warp before `group` hold of a row that reaches into it with
  // `later`, the piece that follows. Returns whether the row begins in this warp.
  __device__ __forceinline__ bool merge_before(int group, Partial& later) const {
    const int warp = static_cast<int>(threadIdx.x / 32 * 32);
    const int in_group = static_cast<int>(threadIdx.x % LANES);
    for (int g = group - 1; g >= 0; --g) {
      const int thread = warp + g * LANES + in_group;
      const bool begins = (ends(thread) & HAS_LAST) != 0;
      Partial piece = load(begins ? LAST : FIRST, thread);
      piece.merge(later);
      later = piece;
      if (begins) return true;
    }
    return false;
  }
};

// The pieces that warps leave for the launch that merges them: (heads, count, Partial::COUNT, LANES)
// floats in global memory. Those of a row are adjacent, in the order of its nonzeros.
template <class Partial, int LANES>
struct WarpPieces {
  float* floats;

  __device__ __forceinline__ float* piece(i64 number) const {
    return floats + number * (Partial::COUNT * LANES) + static_cast<int>(threadIdx.x % LANES);
  }
  __device__ __forceinline__ void store(i64 number, Partial partial) const {
    float* const to = piece(number);
    partial.each([&](int i, float& x) { to[i * LANES] = x; });
  }
  __device__ __forceinline__ Partial load(i64 number) const {
    const float* const from = piece(number);
    Partial partial;
    partial.each([&](int i, float& x) { x = from[i * LANES]; });
    return partial;
  }
};

// Merges the pieces of one row, by a block of THREADS threads: in every lane of the first group. The
// order depends on their number alone. floats: Partial::COUNT * THREADS of shared memory.
template <class Partial, int LANES, int THREADS>
__device__ __forceinline__ Partial merge_pieces(const WarpPieces<Partial, LANES>& pieces,
                                                i64 first, int count, float* floats) {
  constexpr int GROUPS = THREADS / LANES;
  const int group = static_cast<int>(threadIdx.x / LANES);
  const int per_group = (count + GROUPS - 1) / GROUPS;
  const int begin = group * per_group;
  const int end = begin + per_group < count ? begin + per_group : count;
  constexpr int AHEAD = 4;  // pieces whose loads are in flight together
  Partial merged;
#pragma unroll 1
  for (int i = begin; i < end; i += AHEAD) {
    Partial next[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; ++j)
      if (i + j < end) next[j] = pieces.load(first + i + j);
#pragma unroll
    for (int j = 0; j < AHEAD; ++j)
      if (i + j < end) merged.merge(next[j]);
  }
  const int groups = (count + per_group - 1) / per_group;  // those that have pieces
#pragma unroll 1
  for (int distance = 1; distance < groups; distance *= 2) {
    __syncthreads();  // all have read what the last step stored
    merged.each([&](int i, float& x) { floats[i * THREADS + threadIdx.x] = x; });
    __syncthreads();
    if (group % (2 * distance) != 0 || group + distance >= groups) continue;
    Partial later;
    later.each([&](int i, float& x) { x = floats[i * THREADS + threadIdx.x + distance * LANES]; });
    merged.merge(later);
  }
  return merged;
}

}  // namespace sddmm
