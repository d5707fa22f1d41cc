// Arithmetic on pairs of halves in one register.
#pragma once

namespace gemm_core::ptx {

// x y + z of both halves, each rounded once (fused).
__device__ __forceinline__ unsigned int fma_f16x2(unsigned int x, unsigned int y, unsigned int z) {
  unsigned int d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(y), "r"(z));
  return d;
}

}  // namespace gemm_core::ptx
