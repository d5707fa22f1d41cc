// Host twin of gemm_core/ptx/half2.cuh.
#pragma once

namespace gemm_core::ptx {

inline unsigned fma_f16x2(unsigned x, unsigned y, unsigned z) {
  unsigned d = 0;
  for (int half = 0; half < 2; ++half) {
    _Float16 part[3];
    for (int i = 0; i < 3; ++i) {
      const unsigned short bits = (i == 0 ? x : i == 1 ? y : z) >> 16 * half;
      std::memcpy(&part[i], &bits, 2);
    }
    // In double the product and nearly every sum are exact, so that it is rounded once.
    const _Float16 sum = _Float16(double(part[0]) * double(part[1]) + double(part[2]));
    unsigned short bits;
    std::memcpy(&bits, &sum, 2);
    d |= unsigned(bits) << 16 * half;
  }
  return d;
}

}  // namespace gemm_core::ptx
