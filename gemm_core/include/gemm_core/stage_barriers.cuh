// mbarriers of a ring of stages, and the position of a thread in the ring.
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core {

// One mbarrier for each stage, side by side in shared memory.
struct StageBarriers {
  static constexpr int BYTES = 8;  // of one mbarrier
  u32 first;                       // shared address of the barrier of stage 0

  __device__ __forceinline__ u32 operator[](u32 stage) const { return first + BYTES * stage; }
};

// The next stage of a ring of STAGES, and the parity of the round of the ring that it belongs to.
template <int STAGES>
struct RingPosition {
  u32 stage = 0, phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  __device__ __forceinline__ void skip(u32 stages) {
    const u32 sum = stage + stages;
    stage = sum % STAGES;
    phase ^= sum / STAGES % 2;
  }
};

}  // namespace gemm_core
