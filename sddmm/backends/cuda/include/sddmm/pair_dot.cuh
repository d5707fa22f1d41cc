// Dot products of pairs of nonzeros by one warp: both nonzeros of a pair have the same row of A.
#pragma once

#include "gemm_core/ptx/mma.cuh"
#include "sddmm/chunk.cuh"
#include "sddmm/value.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

// The number of pairs that a warp computes at once: a batch. Lanes 4 g .. 4 g + 3 share pair g.
constexpr int BATCH_PAIRS = 8;

// The two sums of each pair of a batch. The four lanes of a pair pass chunks of its row of A and of
// its two rows of B to `add`: the same elements of all three, in any order. All lanes call `finish`;
// it returns the sum of nonzero nonzero() of the pair in those lanes that hold one.
//
// Elements of 16 bits go through mma.m16n8k16: rows g and g + 8 of the product are the two
// nonzeros of pair g, column g is its row of A, so the sums are the diagonals of the two halves.
// Sums of other rows and columns are dropped, infinities and all. Even and odd steps have
// accumulators of their own, as a product waits for the one before it.
template <class T>
struct PairDot {
  static_assert(sizeof(T) == 2, "floats and doubles have their own PairDot");
  float sums[2][4] = {};

  __device__ __forceinline__ void add(int step, const Chunk& b0, const Chunk& b1, const Chunk& a) {
#pragma unroll
    for (int w = 0; w < 4; w += 2) {
      const u32 rows[4] = {b0.word[w], b1.word[w], b0.word[w + 1], b1.word[w + 1]};
      gemm_core::ptx::mma_m16n8k16(sums[step % 2], rows, a.word[w], a.word[w + 1], T{});
    }
  }

  // One lane of the four has both sums: it keeps the first, its neighbour takes the second.
  __device__ __forceinline__ float finish() const {
    const bool odd = threadIdx.x / 4 % 2;
    const float first = odd ? sums[0][1] + sums[1][1] : sums[0][0] + sums[1][0];
    const float second = odd ? sums[0][3] + sums[1][3] : sums[0][2] + sums[1][2];
    const float from_neighbour = __shfl_xor_sync(FULL_MASK, second, 1);
    return nonzero() == 0 ? first : from_neighbour;
  }
  static __device__ __forceinline__ bool holds_sum() {
    return threadIdx.x % 4 / 2 == threadIdx.x / 16 % 2;
  }
  static __device__ __forceinline__ int nonzero() { return (threadIdx.x ^ threadIdx.x / 8) % 2; }
};

// The same for floats and doubles, by ordinary multiply-adds.
template <class T>
struct ScalarPairDot {
  T sums[2] = {};

  __device__ __forceinline__ void add(int, const Chunk& b0, const Chunk& b1, const Chunk& a) {
#pragma unroll
    for (int i = 0; i < CHUNK_ELEMENTS<T>; ++i) {
      sums[0] += element<T>(a, i) * element<T>(b0, i);
      sums[1] += element<T>(a, i) * element<T>(b1, i);
    }
  }

  // Even lanes reduce the first sum, odd lanes the second.
  __device__ __forceinline__ T finish() const {
    T sum = nonzero() ? sums[1] : sums[0];
    sum += __shfl_xor_sync(FULL_MASK, nonzero() ? sums[0] : sums[1], 1);
    return sum + __shfl_xor_sync(FULL_MASK, sum, 2);
  }
  static __device__ __forceinline__ bool holds_sum() { return threadIdx.x % 4 < 2; }
  static __device__ __forceinline__ int nonzero() { return threadIdx.x % 2; }
};
template <>
struct PairDot<float> : ScalarPairDot<float> {};
template <>
struct PairDot<double> : ScalarPairDot<double> {};

}  // namespace sddmm
