// stmatrix: four 8x8 matrices of 16-bit elements from a warp's registers to shared memory (sm_90
// and newer).
#pragma once

namespace gemm_core::ptx {

// Lane l passes the shared address of the 16-byte row l % 8 of matrix l / 8. Register j of a lane
// holds elements 2 * (l % 4) and the next of row l / 4 of matrix j.
__device__ __forceinline__ void stmatrix_x4(unsigned int row, const unsigned int (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace gemm_core::ptx
