// wmma: M x N x 16 products of a warp on halves, in three shapes.
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core::ptx {

// An operand fragment is eight registers; accumulators are eight floats or four pairs of halves
// (fragment.cuh: wmma_accumulator). Rows are `pitch` elements apart, a multiple of eight. Addresses
// are multiples of 32 bytes for a and for b in rows of k, else of 16.
template <int M, int N>
struct Wmma;

#define GEMM_CORE_WMMA_OUT(x) \
  "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]), "=r"(x[4]), "=r"(x[5]), "=r"(x[6]), "=r"(x[7])
#define GEMM_CORE_WMMA_IN(x) \
  "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]), "r"(x[6]), "r"(x[7])
#define GEMM_CORE_WMMA_LOAD(name, operand, layout, shape, space, constraint, Address)           \
  static __device__ __forceinline__ void name(u32 (&x)[8], Address from, int pitch) {           \
    asm volatile("wmma.load." operand ".sync.aligned." layout "." shape "." space               \
                 ".f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"                             \
                 : GEMM_CORE_WMMA_OUT(x)                                                        \
                 : constraint(from), "r"(pitch)                                                 \
                 : "memory");                                                                   \
  }
#define GEMM_CORE_WMMA_MULTIPLY(name, layout, shape)                                            \
  static __device__ __forceinline__ void name(float (&d)[8], const u32 (&a)[8],                 \
                                              const u32 (&b)[8]) {                              \
    asm volatile("wmma.mma.sync.aligned.row." layout "." shape                                  \
                 ".f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "                                  \
                 "{%8, %9, %10, %11, %12, %13, %14, %15}, "                                     \
                 "{%16, %17, %18, %19, %20, %21, %22, %23}, {%0, %1, %2, %3, %4, %5, %6, %7};"  \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),      \
                   "+f"(d[6]), "+f"(d[7])                                                       \
                 : GEMM_CORE_WMMA_IN(a), GEMM_CORE_WMMA_IN(b));                                 \
  }                                                                                             \
  static __device__ __forceinline__ void name(u32 (&d)[4], const u32 (&a)[8],                   \
                                              const u32 (&b)[8]) {                              \
    asm volatile("wmma.mma.sync.aligned.row." layout "." shape                                  \
                 ".f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "              \
                 "{%12, %13, %14, %15, %16, %17, %18, %19}, {%0, %1, %2, %3};"                  \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                               \
                 : GEMM_CORE_WMMA_IN(a), GEMM_CORE_WMMA_IN(b));                                 \
  }
#define GEMM_CORE_WMMA(M, N, shape)                                                             \
  template <>                                                                                   \
  struct Wmma<M, N> {                                                                           \
    GEMM_CORE_WMMA_LOAD(load_a, "a", "row", shape, "shared", "r", u32)                          \
    GEMM_CORE_WMMA_LOAD(load_b_k_rows, "b", "row", shape, "shared", "r", u32)                   \
    GEMM_CORE_WMMA_LOAD(load_b_n_rows, "b", "col", shape, "shared", "r", u32)                   \
    GEMM_CORE_WMMA_LOAD(load_a, "a", "row", shape, "global", "l", const f16*)                   \
    GEMM_CORE_WMMA_LOAD(load_b_k_rows, "b", "row", shape, "global", "l", const f16*)            \
    GEMM_CORE_WMMA_LOAD(load_b_n_rows, "b", "col", shape, "global", "l", const f16*)            \
    GEMM_CORE_WMMA_MULTIPLY(multiply_k_rows, "row", shape)                                      \
    GEMM_CORE_WMMA_MULTIPLY(multiply_n_rows, "col", shape)                                      \
  };

GEMM_CORE_WMMA(16, 16, "m16n16k16")
GEMM_CORE_WMMA(32, 8, "m32n8k16")
GEMM_CORE_WMMA(8, 32, "m8n32k16")

#undef GEMM_CORE_WMMA
#undef GEMM_CORE_WMMA_MULTIPLY
#undef GEMM_CORE_WMMA_LOAD
#undef GEMM_CORE_WMMA_IN
#undef GEMM_CORE_WMMA_OUT

}  // namespace gemm_core::ptx
