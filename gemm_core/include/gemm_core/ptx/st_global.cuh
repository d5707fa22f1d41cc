// st.global.cs: stores of one, two or four words of a result at once. Their lines leave the caches
// first, as what is gathered again and again should stay. The compiler splits plain vector stores
// that stand on several branches.
#pragma once

namespace gemm_core::ptx {

__device__ __forceinline__ void st_global(void* to, const unsigned int (&words)[1]) {
  asm volatile("st.global.cs.b32 [%0], %1;" ::"l"(to), "r"(words[0]) : "memory");
}

__device__ __forceinline__ void st_global(void* to, const unsigned int (&words)[2]) {
  asm volatile("st.global.cs.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(words[0]), "r"(words[1])
               : "memory");
}

__device__ __forceinline__ void st_global(void* to, const unsigned int (&words)[4]) {
  asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}

}  // namespace gemm_core::ptx
