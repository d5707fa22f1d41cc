// Host twin of gemm_core/ptx/cvt.cuh.
#pragma once

namespace gemm_core::ptx {

inline float float_from_f16(unsigned short x) {
  _Float16 h;
  std::memcpy(&h, &x, 2);
  return float(h);
}
inline unsigned short f16_from_float(float x) {
  const _Float16 h = _Float16(x);
  unsigned short bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}
inline float float_from_bf16(unsigned short x) { return __uint_as_float(unsigned(x) << 16); }
inline unsigned short bf16_from_float(float x) {
  const unsigned u = __float_as_uint(x);
  return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
inline void floats_from_f16x2(unsigned x, float& low, float& high) {
  low = float_from_f16(x & 0xffff), high = float_from_f16(x >> 16);
}
inline void floats_from_bf16x2(unsigned x, float& low, float& high) {
  low = float_from_bf16(x & 0xffff), high = float_from_bf16(x >> 16);
}
inline unsigned f16x2_from_floats(float low, float high) {
  return f16_from_float(low) | unsigned(f16_from_float(high)) << 16;
}
inline unsigned bf16x2_from_floats(float low, float high) {
  return bf16_from_float(low) | unsigned(bf16_from_float(high)) << 16;
}

}  // namespace gemm_core::ptx
