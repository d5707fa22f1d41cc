// Where sampled sums go: results at the positions of their nonzeros.
#pragma once

#include "sddmm/value.cuh"

namespace sddmm {

// STAGED: the type of the sums, which are scaled by alpha already. It is OUT unless they are to be
// converted.
template <class OUT, class STAGED>
struct SampledOutput {
  using Result = OUT;
  // Whether results are the staged sums.
  static constexpr bool COPIES = sizeof(OUT) == sizeof(STAGED);
  OUT* out;
  const int* perm;  // may be null

  // Stores sums[h][d] of nonzero first[h] + d * STEP where at[h][d] is not negative.
  template <int STEP, int ROWS, int DEPTH>
  __device__ __forceinline__ void store(const int (&first)[ROWS], const int (&at)[ROWS][DEPTH],
                                        const STAGED (&sums)[ROWS][DEPTH]) const {
    if (perm == nullptr) {
#pragma unroll
      for (int h = 0; h < ROWS; ++h)
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
          if (at[h][d] >= 0) out[first[h] + d * STEP] = result(sums[h][d]);
    } else {
#pragma unroll
      for (int h = 0; h < ROWS; ++h) {
        int positions[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) positions[d] = at[h][d] >= 0 ? perm[first[h] + d * STEP] : 0;
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
          if (at[h][d] >= 0) out[positions[d]] = result(sums[h][d]);
      }
    }
  }
  static __device__ __forceinline__ OUT result(STAGED sum) {
    if constexpr (COPIES)
      return sum;
    else
      return Narrow<OUT>::from(sum);
  }
};

}  // namespace sddmm
