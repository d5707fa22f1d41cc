// st.global: stores of one, two or four words at once. The compiler splits plain vector stores that
// stand on several branches.
#pragma once

namespace gemm_core::ptx {

__device__ __forceinline__ void st_global(void* to, const unsigned int (&words)[1]) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(words[0]) : "memory");
}

__device__ __forceinline__ void st_global(void* to, const unsigned int (&words)[2]) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(words[0]), "r"(words[1])
               : "memory");
}

__device__ __forceinline__ void st_global(void* to, const unsigned int (&words)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}

}  // namespace gemm_core::ptx
