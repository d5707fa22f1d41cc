// Number types and conversions, without CUDA's headers: run-time compilation needs none of them.
#pragma once

namespace gemm_core {

using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;

// 16-bit storage types; arithmetic goes through the wrappers of ptx/.
struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};

// Select<CONDITION, A, B>::type is A if CONDITION, else B (std::conditional).
template <bool CONDITION, class A, class B>
struct Select {
  using type = A;
};
template <class A, class B>
struct Select<false, A, B> {
  using type = B;
};

// A condition as an argument, so that a lambda is compiled for either (std::bool_constant).
template <bool V>
struct Bool {
  static constexpr bool VALUE = V;
};

// Conversions of an element type, and its Pair: two neighbours in memory as one word.
template <class T>
struct Numeric;

}  // namespace gemm_core

#include "gemm_core/ptx/cvt.cuh"

namespace gemm_core {

template <>
struct Numeric<f16> {
  static __device__ float to_float(f16 x) { return ptx::float_from_f16(x.bits); }
  static __device__ f16 from_float(float x) { return {ptx::f16_from_float(x)}; }
  using Pair = u32;
  static __device__ Pair pair(float x, float y) { return ptx::f16x2_from_floats(x, y); }
};

template <>
struct Numeric<bf16> {
  static __device__ float to_float(bf16 x) { return ptx::float_from_bf16(x.bits); }
  static __device__ bf16 from_float(float x) { return {ptx::bf16_from_float(x)}; }
  using Pair = u32;
  static __device__ Pair pair(float x, float y) { return ptx::bf16x2_from_floats(x, y); }
};

template <>
struct Numeric<float> {
  static __device__ float to_float(float x) { return x; }
  static __device__ float from_float(float x) { return x; }
  using Pair = float2;
  static __device__ Pair pair(float x, float y) { return make_float2(x, y); }
};

// Sum i of a thread's accumulators, which are floats or pairs of halves.
template <int COUNT>
__device__ __forceinline__ float sum_of(const float (&sums)[COUNT], int i) {
  return sums[i];
}
template <int PAIRS>
__device__ __forceinline__ float sum_of(const u32 (&sums)[PAIRS], int i) {
  return Numeric<f16>::to_float(f16{static_cast<u16>(sums[i / 2] >> 16 * (i % 2))});
}

}  // namespace gemm_core
