// What the 32 lanes of a warp do together, beside tensor-core instructions.
#pragma once

#include "gemm_core/numeric.cuh"

namespace sddmm {

// The mask of shuffles and votes in which every lane of the warp takes part.
constexpr gemm_core::u32 FULL_MASK = 0xffffffff;

// The sum of x over the warp, in every lane.
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(FULL_MASK, x, distance);
  return x;
}

// The lane of the warp that is number i, modulo LANES, of this lane's group of LANES lanes.
template <int LANES>
__device__ __forceinline__ int group_lane(int i) {
  return static_cast<int>(threadIdx.x % 32 & ~(LANES - 1u)) | (i & (LANES - 1));
}

// The number of lanes from this one on that have the same key, if this lane is the first of them;
// else 0. Negative keys belong to no run.
__device__ __forceinline__ int run_length(int key) {
  const int lane = threadIdx.x % 32, previous = __shfl_up_sync(FULL_MASK, key, 1);
  const bool first = lane == 0 || previous != key;
  const gemm_core::u32 later_runs =
      __ballot_sync(FULL_MASK, first) & ~(1u << lane) & (FULL_MASK << lane);
  return !first || key < 0 ? 0 : (later_runs == 0 ? 32 : __ffs(later_runs) - 1) - lane;
}

// entries[after + 1 .. last] = value, for each lane's own range. All lanes fill a long range
// together.
__device__ __forceinline__ void fill(int* entries, int after, int last, int value) {
  constexpr int SHORT = 8;  // the number of entries up to which a lane fills its range alone
  const int lane = threadIdx.x % 32;
  for (gemm_core::u32 pending = __ballot_sync(FULL_MASK, last - after > SHORT); pending != 0;
       pending &= pending - 1) {
    const int owner = __ffs(pending) - 1;
    const int end = __shfl_sync(FULL_MASK, last, owner);
    const int entry = __shfl_sync(FULL_MASK, value, owner);
    for (int i = __shfl_sync(FULL_MASK, after, owner) + 1 + lane; i <= end; i += 32)
      entries[i] = entry;
  }
  if (last - after > SHORT) return;
#pragma unroll 1
  while (after < last) entries[++after] = value;
}

}  // namespace sddmm
