// Where sampled sums go: results at the positions of their nonzeros, scaled by values if WEIGHTED.
#pragma once

#include "sddmm/value.cuh"

namespace sddmm {

// STAGED: the type of the sums, which are scaled by alpha already. It is OUT unless they are to be
// converted or scaled by values.
template <class T, class OUT, class STAGED, bool WEIGHTED>
struct SampledOutput {
  using Result = OUT;
  using Value = T;
  static constexpr bool SCALES = WEIGHTED;
  // Whether results are the staged sums.
  static constexpr bool COPIES = !WEIGHTED && sizeof(OUT) == sizeof(STAGED);
  OUT* out;
  const T* values;
  const int* perm;  // may be null

  // Loads the values of the nonzeros at positions[d] where at[d] is not negative, if they scale.
  template <int DEPTH>
  __device__ __forceinline__ void load_values(T (&loaded)[DEPTH], const int (&positions)[DEPTH],
                                              const int (&at)[DEPTH]) const {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
      if (WEIGHTED && at[d] >= 0) loaded[d] = load_read_only(values + positions[d]);
  }
  // Stores sums[d], which is scaled by scales[d], at positions[d] where at[d] is not negative.
  template <int DEPTH>
  __device__ __forceinline__ void store_at(const int (&positions)[DEPTH], const int (&at)[DEPTH],
                                           const STAGED (&sums)[DEPTH],
                                           const T (&scales)[DEPTH]) const {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
      if (at[d] >= 0) out[positions[d]] = result(sums[d], scales[d]);
  }
  // The values of some nonzeros of several rows, if they scale.
  template <int ROWS, int DEPTH>
  struct Scales {
    T of_row[WEIGHTED ? ROWS : 1][DEPTH];
  };
  // Loads those of nonzero first[h] + d * STEP where at[h][d] is not negative.
  template <int STEP, int ROWS, int DEPTH>
  __device__ __forceinline__ void load_scales(Scales<ROWS, DEPTH>& scales, const int (&first)[ROWS],
                                              const int (&at)[ROWS][DEPTH]) const {
#pragma unroll
    for (int h = 0; WEIGHTED && h < ROWS; ++h) {
      int positions[DEPTH];
#pragma unroll
      for (int d = 0; d < DEPTH; ++d) {
        positions[d] = first[h] + d * STEP;
        if (perm != nullptr && at[h][d] >= 0) positions[d] = perm[positions[d]];
      }
      load_values(scales.of_row[h], positions, at[h]);
    }
  }
  // Stores sums[h][d] of nonzero first[h] + d * STEP where at[h][d] is not negative.
  template <int STEP, int ROWS, int DEPTH>
  __device__ __forceinline__ void store(const int (&first)[ROWS], const int (&at)[ROWS][DEPTH],
                                        const STAGED (&sums)[ROWS][DEPTH],
                                        const Scales<ROWS, DEPTH>& scales) const {
    if (perm == nullptr) {
#pragma unroll
      for (int h = 0; h < ROWS; ++h) {
        int positions[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) positions[d] = first[h] + d * STEP;
        store_at(positions, at[h], sums[h], scales.of_row[WEIGHTED ? h : 0]);
      }
    } else {
#pragma unroll
      for (int h = 0; h < ROWS; ++h) {
        int positions[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) positions[d] = at[h][d] >= 0 ? perm[first[h] + d * STEP] : 0;
        store_at(positions, at[h], sums[h], scales.of_row[WEIGHTED ? h : 0]);
      }
    }
  }
  // The value of a nonzero that is stored at its own number: perm is null.
  __device__ __forceinline__ T value(int nonzero) const {
    return WEIGHTED ? load_read_only(values + nonzero) : T{};
  }
  // The result of a sum, for a nonzero with this value.
  static __device__ __forceinline__ OUT result(STAGED sum, T value) {
    if constexpr (WEIGHTED)
      return Narrow<OUT>::from(sum * widened(value));
    else if constexpr (COPIES)
      return sum;
    else
      return Narrow<OUT>::from(sum);
  }
};

}  // namespace sddmm
