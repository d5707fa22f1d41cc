// The online softmax (softmax_sum.cuh) of a warp's rows of tiles, and their sums of rows of V.
#pragma once

#include "gemm_core/ptx/ex2.cuh"
#include "sddmm/softmax_sum.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

namespace ptx = gemm_core::ptx;

// How far, in powers of two, a score may exceed the base of its row's exponents. More, and the sums
// are taken relative to a new base: the largest score.
constexpr float MOST_ABOVE_BASE = 8.f;

// The sums of a lane's two rows of each block of the warp's rows. Scores and sums are elements as those
// of MmaLanes: of GROUPS groups of columns, and of VALUE_GROUPS. ROW_LANES: see there.
template <int BLOCKS, int GROUPS, int VALUE_GROUPS, u32 ROW_LANES>
struct LaneRows {
  using Weights = float[BLOCKS][GROUPS][4];
  float out[BLOCKS][VALUE_GROUPS][4] = {};
  float base[BLOCKS][2];  // a largest score; -inf while the row has no other
  float sum[BLOCKS][2] = {};  // over this lane's columns

  __device__ __forceinline__ LaneRows() {
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) base[b][0] = base[b][1] = minus_infinity();
  }

  // Turns scores, times `scale`, which is positive, into weights relative to the base.
  __device__ __forceinline__ void weigh(Weights& scores, float scale) {
    float largest[BLOCKS][2];
    bool is_above = false;
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float own = fmaxf(scores[b][0][2 * r], scores[b][0][2 * r + 1]);
#pragma unroll
        for (int j = 1; j < GROUPS; ++j)
          own = fmaxf(own, fmaxf(scores[b][j][2 * r], scores[b][j][2 * r + 1]));
        largest[b][r] = own * scale;
        is_above |= largest[b][r] > base[b][r] + MOST_ABOVE_BASE;
      }
    if (__any_sync(FULL_MASK, is_above)) raise(largest);
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float offset = -finite_base(base[b][r]);
#pragma unroll
        for (int j = 0; j < GROUPS; ++j)
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e)
            sum[b][r] += scores[b][j][e] = ptx::ex2(scores[b][j][e] * scale + offset);
      }
  }
  // Raises the bases of rows to the largest scores of the lanes that share a row. Leaves those that
  // are near enough, so that no row's result depends on another row.
  __device__ __forceinline__ void raise(float (&largest)[BLOCKS][2]) {
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float raised = largest[b][r];
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2)
          if ((ROW_LANES & distance) != 0)
            raised = fmaxf(raised, __shfl_xor_sync(FULL_MASK, raised, distance));
        if (!(raised > base[b][r] + MOST_ABOVE_BASE)) raised = base[b][r];
        const float factor = ptx::ex2(base[b][r] - finite_base(raised));
        base[b][r] = raised;
        sum[b][r] *= factor;
#pragma unroll
        for (int j = 0; j < VALUE_GROUPS; ++j)
          out[b][j][2 * r] *= factor, out[b][j][2 * r + 1] *= factor;
      }
  }
  // Adds up the sums of the lanes that share a row. Returns 0 if all sums are finite: then they have
  // met no zero times what is not finite; else NaN.
  __device__ __forceinline__ float finish() {
    float zero = 0.f;
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2)
          if ((ROW_LANES & distance) != 0)
            sum[b][r] += __shfl_xor_sync(FULL_MASK, sum[b][r], distance);
        zero += 0.f * sum[b][r] + 0.f * finite_base(base[b][r]);
      }
#pragma unroll
      for (int j = 0; j < VALUE_GROUPS; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) zero += 0.f * out[b][j][e];
    }
    return zero;
  }
};

}  // namespace sddmm
