// Sums over the nonzeros of a row, weighted by the softmax of their scores, in one pass over them: the
// online softmax (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
#pragma once

#include "gemm_core/ptx/ex2.cuh"
#include "gemm_core/ptx/lg2.cuh"
#include "gemm_core/ptx/rcp.cuh"
#include "sddmm/value.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

__device__ __forceinline__ float minus_infinity() { return -__uint_as_float(0x7f800000); }
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

// Where exponents are taken relative to: to a row that has only -inf so far 2^(-inf - 0) adds 0,
// while 2^(-inf + inf) would be NaN.
__device__ __forceinline__ float finite_base(float largest) {
  return largest == minus_infinity() ? 0.f : largest;
}

// What is known of a row, or of a part of it: the largest score, in units of log(2), or a little less
// (raise_rarely); the sum of 2^(score - largest); and the sum of the rows of V, of which a lane has
// CHUNKS times ELEMENTS elements, weighted by the same. Dropped weights count in `sum` alone.
template <int CHUNKS, int ELEMENTS>
struct SoftmaxSum {
  static constexpr int COUNT = 2 + CHUNKS * ELEMENTS;
  static constexpr float MAX_RISE = 8.f;  // see raise_rarely
  float largest = minus_infinity(), sum = 0.f;
  float out[CHUNKS][ELEMENTS] = {};

  template <class Use>
  __device__ __forceinline__ void each(const Use& use) {
    use(0, largest), use(1, sum);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
      for (int e = 0; e < ELEMENTS; ++e) use(2 + c * ELEMENTS + e, out[c][e]);
  }
  __device__ __forceinline__ void scale(float factor) {
    sum *= factor;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
      for (int e = 0; e < ELEMENTS; ++e) out[c][e] *= factor;
  }
  // Makes `score` the largest if it is. Returns what the exponents of further scores are relative to.
  __device__ __forceinline__ float raise(float score) {
    const float raised = fmaxf(largest, score), base = finite_base(raised);
    scale(gemm_core::ptx::ex2(largest - base));
    largest = raised;
    return base;
  }
  // The same, by all lanes of a warp, and faster: `largest` may stay MAX_RISE below the largest score,
  // so that few scores rise above it by more. Powers of two are then at most 2^MAX_RISE, not 1.
  __device__ __forceinline__ float raise_rarely(float score) {
    const bool rises = score > largest + MAX_RISE;
    if (__any_sync(FULL_MASK, rises)) raise(rises ? score : largest);
    return finite_base(largest);
  }
  // The same where each lane of a group of LANES lanes has a score of its own.
  template <int LANES>
  __device__ __forceinline__ float raise_rarely_to_largest(float score) {
    if (__any_sync(FULL_MASK, score > largest + MAX_RISE)) {
#pragma unroll
      for (int distance = LANES / 2; distance > 0; distance /= 2)
        score = fmaxf(score, __shfl_xor_sync(FULL_MASK, score, distance));
      raise(score > largest + MAX_RISE ? score : largest);
    }
    return finite_base(largest);
  }
  __device__ __forceinline__ void merge(const SoftmaxSum& other) {
    const float factor = gemm_core::ptx::ex2(other.largest - raise(other.largest));
    sum += factor * other.sum;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
      for (int e = 0; e < ELEMENTS; ++e) out[c][e] += factor * other.out[c][e];
  }
  // What makes `out` the weighted mean. A row without any weight has the mean 0.
  __device__ __forceinline__ float normalizer() const {
    return largest == minus_infinity() && sum == 0.f ? 1.f : gemm_core::ptx::rcp(sum);
  }
  __device__ __forceinline__ float log_sum() const {
    return sum == 0.f ? largest : (largest + gemm_core::ptx::lg2(sum)) * LN_2;
  }
};

}  // namespace sddmm
