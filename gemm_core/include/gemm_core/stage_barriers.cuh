// mbarriers of a ring of stages.
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core {

// One mbarrier for each stage, side by side in shared memory.
struct StageBarriers {
  static constexpr int BYTES = 8;  // of one mbarrier
  u32 first;                       // shared address of the barrier of stage 0

  __device__ __forceinline__ u32 operator[](u32 stage) const { return first + BYTES * stage; }
};

}  // namespace gemm_core
