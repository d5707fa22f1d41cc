// ldmatrix: four 8x8 matrices of 16-bit elements from shared memory to a warp's registers.
#pragma once

namespace gemm_core::ptx {

// Lane l passes the 16-byte row l % 8 of matrix l / 8 (fragments.py: ldmatrix_address).
__device__ __forceinline__ void ldmatrix_x4(unsigned int (&r)[4], unsigned int row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(unsigned int (&r)[4], unsigned int row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

}  // namespace gemm_core::ptx
