// The rows of consecutive nonzeros of a CSR pattern, by searching and scanning crow_indices.
#pragma once

#include "gemm_core/numeric.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

// Returns the last row of low .. high that begins at or before nonzero i. The lanes of a warp
// search together: each step narrows the range to a 128th.
template <class IndexType>
__device__ __forceinline__ int find_row(const IndexType* crow, int low, int high,
                                        gemm_core::i64 i) {
  using gemm_core::i64;
  constexpr int PROBES = 4;  // the number of loads of a lane that are in flight together
  while (low < high) {
    const int step = (high - low + 32 * PROBES - 1) / (32 * PROBES);
    bool begins[PROBES];
#pragma unroll
    for (int j = 0; j < PROBES; ++j) {
      const int probe = j * 32 + static_cast<int>(threadIdx.x) % 32 + 1;
      const i64 row = low + static_cast<i64>(probe) * step;
      begins[j] = row <= high && crow[row] <= i;
    }
    int steps = 0;
#pragma unroll
    for (int j = 0; j < PROBES; ++j) steps += __popc(__ballot_sync(FULL_MASK, begins[j]));
    low += steps * step;
    high = low + step - 1 < high ? low + step - 1 : high;
  }
  return low;
}

// The index of entry i in a padded array in shared memory: a warp whose threads read ITEMS
// consecutive entries each has no bank conflicts.
template <int ITEMS>
__device__ __forceinline__ int padded(int i) {
  return i + i / ITEMS;
}

// Replaces entry i of a padded array by the maximum of entries 0 .. i: an inclusive scan by all
// threads of the block, ITEMS entries each. warp_max: one word per warp in shared memory.
template <int ITEMS>
__device__ __forceinline__ void scan_max(int* entries, int* warp_max) {
  int* const own = entries + padded<ITEMS>(threadIdx.x * ITEMS);
  int scanned[ITEMS];
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    scanned[j] = own[j];
    if (j > 0 && scanned[j - 1] > scanned[j]) scanned[j] = scanned[j - 1];
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int largest = scanned[ITEMS - 1];
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(FULL_MASK, largest, distance);
    if (lane >= distance && other > largest) largest = other;
  }
  if (lane == 31) warp_max[warp] = largest;
  __syncthreads();
  int prefix = __shfl_up_sync(FULL_MASK, largest, 1);
  if (lane == 0) prefix = 0;
  for (int w = 0; w < warp; ++w) prefix = warp_max[w] > prefix ? warp_max[w] : prefix;
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) own[j] = scanned[j] > prefix ? scanned[j] : prefix;
  __syncthreads();
}

}  // namespace sddmm
