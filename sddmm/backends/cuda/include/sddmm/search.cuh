// Searches of sorted arrays by a warp.
#pragma once

#include "sddmm/value.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

// For each t, the least i of low[t] .. high[t] with is_past(t, i), which never turns false again
// and is taken to be true of high[t]: returned in low[t]. The lanes of a warp search together: each
// step narrows all ranges to a 128th.
template <int COUNT, class IsPast>
__device__ __forceinline__ void warp_lower_bound(i64 (&low)[COUNT], i64 (&high)[COUNT],
                                                 const IsPast& is_past) {
  constexpr int PROBES = 4;  // the number of loads of a lane and range that are in flight together
  for (;;) {
    bool done = true;
#pragma unroll
    for (int t = 0; t < COUNT; ++t) done = done && low[t] >= high[t];
    if (done) return;
    i64 step[COUNT];
    bool before[COUNT][PROBES];
#pragma unroll
    for (int t = 0; t < COUNT; ++t) {
      step[t] = (high[t] - low[t] + 32 * PROBES - 1) / (32 * PROBES);
      if (step[t] == 0) step[t] = 1;
#pragma unroll
      for (int j = 0; j < PROBES; ++j) {
        const int probe = j * 32 + static_cast<int>(threadIdx.x) % 32 + 1;
        const i64 i = low[t] + probe * step[t] - 1;
        before[t][j] = i < high[t] && !is_past(t, i);
      }
    }
#pragma unroll
    for (int t = 0; t < COUNT; ++t) {
      int steps = 0;
#pragma unroll
      for (int j = 0; j < PROBES; ++j) steps += __popc(__ballot_sync(FULL_MASK, before[t][j]));
      low[t] += steps * step[t];
      const i64 last = low[t] + step[t] - 1;
      if (last < high[t]) high[t] = last;
    }
  }
}

}  // namespace sddmm
