// Host twin of gemm_core/ptx/wmma.cuh. CUDA does not specify which lane holds which element of an
// operand, so operands are simply in order here; accumulators have the layout of the published
// dump.
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core::ptx {

template <int M, int N>
struct Wmma {
  struct Operands {
    u32 a[8], b[8];
  };

  // Loads `rows` rows of `across` elements; each lane holds `per_lane` elements in order.
  template <class Row>
  static void load(u32 (&x)[8], int rows, int across, Row row_at) {
    const int per_lane = rows * across / 32, lane = threadIdx.x % 32;
    std::memset(x, 0, sizeof x);
    for (int e = 0; e < per_lane; ++e) {
      const int index = lane * per_lane + e;
      u16 bits;
      std::memcpy(&bits, row_at(index / across) + 2 * (index % across), 2);
      x[e / 2] |= u32(bits) << 16 * (e % 2);
    }
    emulation::with_warp(0, [](const int*, int) {});
  }
  static void load(u32 (&x)[8], u32 from, int pitch, int rows, int across) {
    if (from % 16 || pitch % 8 || from + 2 * ((rows - 1) * pitch + across) > sizeof(shared))
      std::abort();
    load(x, rows, across, [&](int row) { return shared + from + 2 * row * pitch; });
  }
  static void load(u32 (&x)[8], const f16* from, int pitch, int rows, int across) {
    if (reinterpret_cast<std::size_t>(from) % 16 || pitch % 8) std::abort();
    load(x, rows, across,
         [&](int row) { return reinterpret_cast<const unsigned char*>(from + row * pitch); });
  }

  template <class Address>
  static void load_a(u32 (&x)[8], Address from, int pitch) { load(x, from, pitch, M, 16); }
  template <class Address>
  static void load_b_k_rows(u32 (&x)[8], Address from, int pitch) { load(x, from, pitch, 16, N); }
  template <class Address>
  static void load_b_n_rows(u32 (&x)[8], Address from, int pitch) { load(x, from, pitch, N, 16); }

  static float element(const Operands* all, bool of_a, int index, int per_lane) {
    const u32* x = of_a ? all[index / per_lane].a : all[index / per_lane].b;
    return Numeric<f16>::to_float(f16{u16(x[index % per_lane / 2] >> 16 * (index % per_lane % 2))});
  }
  template <bool K_ROWS, class Add>
  static void multiply(const u32 (&a)[8], const u32 (&b)[8], Add add) {
    Operands own;
    std::memcpy(own.a, a, sizeof a);
    std::memcpy(own.b, b, sizeof b);
    emulation::with_warp(own, [&](const Operands* all, int lane) {
      for (int i = 0; i < 8; ++i) {
        const int g = lane / 4, t = lane % 4 * 2 + i % 2;
        const int row = M == 16 ? g + i / 2 % 2 * 8 : M == 32 ? g + i / 2 * 8 : t;
        const int column = M == 16 ? t + i / 4 * 8 : M == 32 ? t : g + i / 2 * 8;
        float sum = 0.f;
        for (int k = 0; k < 16; ++k)
          sum += element(all, true, row * 16 + k, M / 2) *
                 element(all, false, K_ROWS ? k * N + column : column * 16 + k, N / 2);
        add(i, sum);
      }
    });
  }
  template <bool K_ROWS>
  static void multiply(float (&d)[8], const u32 (&a)[8], const u32 (&b)[8]) {
    multiply<K_ROWS>(a, b, [&](int i, float sum) { d[i] += sum; });
  }
  template <bool K_ROWS>
  static void multiply(u32 (&d)[4], const u32 (&a)[8], const u32 (&b)[8]) {
    multiply<K_ROWS>(a, b, [&](int i, float sum) {
      const int shift = 16 * (i % 2);
      const float old = Numeric<f16>::to_float(f16{u16(d[i / 2] >> shift)});
      const u32 bits = Numeric<f16>::from_float(old + sum).bits;
      d[i / 2] = (d[i / 2] & ~(0xffffu << shift)) | bits << shift;
    });
  }
  template <class Sums>
  static void multiply_k_rows(Sums& d, const u32 (&a)[8], const u32 (&b)[8]) {
    multiply<true>(d, a, b);
  }
  template <class Sums>
  static void multiply_n_rows(Sums& d, const u32 (&a)[8], const u32 (&b)[8]) {
    multiply<false>(d, a, b);
  }
};

}  // namespace gemm_core::ptx
