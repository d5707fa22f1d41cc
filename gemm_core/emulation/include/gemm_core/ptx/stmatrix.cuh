// Host twin of gemm_core/ptx/stmatrix.cuh, from the PTX ISA's description.
#pragma once

namespace gemm_core::ptx {

inline void stmatrix_x4(unsigned row, const unsigned (&r)[4]) {
  if (row % 16 || row + 16 > sizeof(shared)) std::abort();
  emulation::with_warp(row, [&](const unsigned* rows, int lane) {
    for (int j = 0; j < 4; ++j)
      std::memcpy(shared + rows[8 * j + lane / 4] + lane % 4 * 4, &r[j], 4);
  });
}

}  // namespace gemm_core::ptx
