// wgmma on 16-bit operands: a 64 x N product by a warpgroup (sm_90a only). Descriptors, fences and
// waits are in wgmma.cuh.
#pragma once

#include "gemm_core/ptx/wgmma.cuh"
#include "gemm_core/ptx/wgmma_operands.cuh"

namespace gemm_core::ptx {

// d = A B + (accumulate ? d : 0), both operands in shared memory: A 64 x 16 with k along the rows,
// and B N x 16 with k along the rows, or 16 x N with n along the rows (B_ROWS_ARE_K, with a descriptor
// by wgmma_descriptor_rows_of_k). Fragments of d as in fragment.cuh: wgmma_d. a_, b_, p_, t_: the
// operand numbers that follow those of d.
#define GEMM_CORE_WGMMA_K16(T, type, n, count, a_, b_, p_, t_)                                  \
template <bool B_ROWS_ARE_K = false>                                                            \
__device__ __forceinline__ void wgmma_k16(float (&d)[count], unsigned long long a,              \
                                          unsigned long long b, bool accumulate, T) {           \
  asm volatile(                                                                                 \
      "{ .reg .pred p; setp.ne.u32 p, " p_ ", 0; "                                              \
      "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " "                        \
      "{" GEMM_CORE_NAMES_##count "}, " a_ ", " b_ ", p, 1, 1, 0, " t_ "; }"                    \
      : GEMM_CORE_OPERANDS_##count                                                              \
      : "l"(a), "l"(b), "r"(static_cast<u32>(accumulate)), "n"(B_ROWS_ARE_K ? 1 : 0));          \
}

GEMM_CORE_WGMMA_K16(f16, "f16", "64", 32, "%32", "%33", "%34", "%35")
GEMM_CORE_WGMMA_K16(f16, "f16", "128", 64, "%64", "%65", "%66", "%67")
GEMM_CORE_WGMMA_K16(f16, "f16", "152", 76, "%76", "%77", "%78", "%79")
GEMM_CORE_WGMMA_K16(f16, "f16", "192", 96, "%96", "%97", "%98", "%99")
GEMM_CORE_WGMMA_K16(f16, "f16", "224", 112, "%112", "%113", "%114", "%115")
GEMM_CORE_WGMMA_K16(f16, "f16", "256", 128, "%128", "%129", "%130", "%131")
GEMM_CORE_WGMMA_K16(bf16, "bf16", "64", 32, "%32", "%33", "%34", "%35")
GEMM_CORE_WGMMA_K16(bf16, "bf16", "128", 64, "%64", "%65", "%66", "%67")
GEMM_CORE_WGMMA_K16(bf16, "bf16", "152", 76, "%76", "%77", "%78", "%79")
GEMM_CORE_WGMMA_K16(bf16, "bf16", "192", 96, "%96", "%97", "%98", "%99")
GEMM_CORE_WGMMA_K16(bf16, "bf16", "224", 112, "%112", "%113", "%114", "%115")
GEMM_CORE_WGMMA_K16(bf16, "bf16", "256", 128, "%128", "%129", "%130", "%131")

#undef GEMM_CORE_WGMMA_K16

}  // namespace gemm_core::ptx
