// The row of a nonzero of a CSR pattern, by searching crow_indices.
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

}  // namespace sddmm
