// Host twin of gemm_core/ptx/ldmatrix.cuh, from the PTX ISA's description.
#pragma once

namespace gemm_core::ptx {

template <bool TRANS>
inline void load_matrices(unsigned (&r)[4], unsigned row) {
  if (row % 16 || row + 16 > sizeof(shared)) std::abort();
  emulation::with_warp(row, [&](const unsigned* rows, int lane) {
    for (int j = 0; j < 4; ++j) {
      unsigned short halves[2];
      for (int h = 0; h < 2; ++h) {
        const int line = TRANS ? lane % 4 * 2 + h : lane / 4;
        const int column = TRANS ? lane / 4 : lane % 4 * 2 + h;
        std::memcpy(&halves[h], shared + rows[8 * j + line] + 2 * column, 2);
      }
      r[j] = halves[0] | unsigned(halves[1]) << 16;
    }
  });
}
inline void ldmatrix_x4(unsigned (&r)[4], unsigned row) { load_matrices<false>(r, row); }
inline void ldmatrix_x4_trans(unsigned (&r)[4], unsigned row) { load_matrices<true>(r, row); }

}  // namespace gemm_core::ptx
