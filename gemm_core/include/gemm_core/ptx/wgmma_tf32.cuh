// wgmma on floats, of which it reads the TF32 bits: a 64 x N product by a warpgroup (sm_90a only).
// Descriptors, fences and waits are in wgmma.cuh.
#pragma once

#include "gemm_core/ptx/wgmma.cuh"
#include "gemm_core/ptx/wgmma_operands.cuh"

namespace gemm_core::ptx {

// d = A B + (accumulate ? d : 0): A 64 x 8 and B N x 8, both in shared memory, k along the rows.
// Fragments of d as in fragment.cuh: wgmma_d. a_, b_, p_: the operand numbers that follow those of
// d.
#define GEMM_CORE_WGMMA_K8(n, count, a_, b_, p_)                                                \
__device__ __forceinline__ void wgmma_k8(float (&d)[count], unsigned long long a,               \
                                         unsigned long long b, bool accumulate) {               \
  asm volatile(                                                                                 \
      "{ .reg .pred p; setp.ne.u32 p, " p_ ", 0; "                                              \
      "wgmma.mma_async.sync.aligned.m64n" n "k8.f32.tf32.tf32 "                                 \
      "{" GEMM_CORE_NAMES_##count "}, " a_ ", " b_ ", p, 1, 1; }"                               \
      : GEMM_CORE_OPERANDS_##count                                                              \
      : "l"(a), "l"(b), "r"(static_cast<u32>(accumulate)));                                     \
}

GEMM_CORE_WGMMA_K8("128", 64, "%64", "%65", "%66")
GEMM_CORE_WGMMA_K8("256", 128, "%128", "%129", "%130")

#undef GEMM_CORE_WGMMA_K8

}  // namespace gemm_core::ptx
