// Dot products of rows by a warp, one chunk at a time: lanes 4 g .. 4 g + 3 hold the two rows of a
// nonzero, or a part of them where a nonzero has eight or more lanes.
#pragma once

#include "gemm_core/ptx/mma.cuh"
#include "sddmm/chunk.cuh"
#include "sddmm/value.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

// The number of lanes that share a row of either operand of mma.m16n8k16.
constexpr int LANES_PER_NONZERO = 4;

// Sums of BATCHES batches. The lanes of a nonzero pass chunks of its row of A and of its row of B: the
// same elements of both, in any order. `add_shared`: all nonzeros of all batches have the same row of
// A. `add`: the nonzeros of batch j have rows of their own, COUNT chunks of each. sum(j): of batch j,
// what the four lanes g have passed, in lane `owner_lane(g)` of halves; what a lane has, of others.
//
// Elements of 16 bits go through mma.m16n8k16. Lane 4 g + t passes row g of either operand, four of
// its k. Which k does not matter as long as both operands agree, so a plain 16-byte load feeds two
// instructions without a shuffle. The sums of the nonzeros are the diagonal of the product.
template <class T, int BATCHES>
struct RowDot {
  static_assert(sizeof(T) == 2 && BATCHES % 2 == 0, "a product of 16 rows takes two batches");
  float sums[BATCHES / 2][4] = {};

  template <int BYTES>
  __device__ __forceinline__ void add_shared(const ChunkOf<BYTES> (&b)[BATCHES],
                                             const ChunkOf<BYTES>& a) {
#pragma unroll
    for (int j = 0; j < BATCHES; j += 2)
#pragma unroll
      for (int w = 0; w < BYTES / 4; w += 2) {
        const u32 rows[4] = {b[j].word[w], b[j + 1].word[w], b[j].word[w + 1],
                             b[j + 1].word[w + 1]};
        gemm_core::ptx::mma_m16n8k16(sums[j / 2], rows, a.word[w], a.word[w + 1], T{});
      }
  }

  // A chunk is passed as the 16-row operand unchanged: its words 0 and 2 are rows 0 .. 7, words 1
  // and 3 rows 8 .. 15. One product sums words 0 and 2 in its upper half, the other words 1 and 3
  // in its lower half; the other halves are dropped. So no operand is padded with zeros or with
  // rows of another batch, whose infinities would turn sums of this batch into NaN.
  template <int COUNT>
  __device__ __forceinline__ void add(int j, const Chunk (&b)[COUNT], const Chunk (&a)[COUNT]) {
    float(&pair)[4] = sums[j / 2];
    const int own = j % 2 * 2;
    float upper[4] = {pair[own], pair[own + 1], 0.f, 0.f}, lower[4] = {};
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      gemm_core::ptx::mma_m16n8k16(upper, b[i].word, a[i].word[0], a[i].word[2], T{});
      gemm_core::ptx::mma_m16n8k16(lower, b[i].word, a[i].word[1], a[i].word[3], T{});
    }
    pair[own] = upper[0] + lower[2], pair[own + 1] = upper[1] + lower[3];
  }

  // A chunk of 8 bytes is both halves of the 16-row operand; the lower sums are dropped.
  template <int COUNT>
  __device__ __forceinline__ void add(int j, const ChunkOf<8> (&b)[COUNT],
                                      const ChunkOf<8> (&a)[COUNT]) {
    float(&pair)[4] = sums[j / 2];
    const int own = j % 2 * 2;
    float upper[4] = {pair[own], pair[own + 1], 0.f, 0.f};
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const u32 rows[4] = {b[i].word[0], b[i].word[0], b[i].word[1], b[i].word[1]};
      gemm_core::ptx::mma_m16n8k16(upper, rows, a[i].word[0], a[i].word[1], T{});
    }
    pair[own] = upper[0], pair[own + 1] = upper[1];
  }

  static __device__ __forceinline__ int owner_lane(int g) { return 4 * g + g / 2; }
  __device__ __forceinline__ float sum(int j) const {
    const float* pair = sums[j / 2] + j % 2 * 2;
    return threadIdx.x / 4 % 2 ? pair[1] : pair[0];
  }
};

// The same for floats and doubles, by ordinary multiply-adds.
template <class T, int BATCHES>
struct ScalarDot {
  T sums[BATCHES] = {};

  template <int BYTES>
  __device__ __forceinline__ void add_shared(const ChunkOf<BYTES> (&b)[BATCHES],
                                             const ChunkOf<BYTES>& a) {
#pragma unroll
    for (int j = 0; j < BATCHES; ++j) multiply(sums[j], b[j], a);
  }
  template <int COUNT, int BYTES>
  __device__ __forceinline__ void add(int j, const ChunkOf<BYTES> (&b)[COUNT],
                                      const ChunkOf<BYTES> (&a)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) multiply(sums[j], b[i], a[i]);
  }
  __device__ __forceinline__ T sum(int j) const { return sums[j]; }

 private:
  template <int BYTES>
  static __device__ __forceinline__ void multiply(T& sum, const ChunkOf<BYTES>& b,
                                                  const ChunkOf<BYTES>& a) {
#pragma unroll
    for (int i = 0; i < CHUNK_ELEMENTS<T, ChunkOf<BYTES>>; ++i) sum += element<T>(a, i) * element<T>(b, i);
  }
};
template <int BATCHES>
struct RowDot<float, BATCHES> : ScalarDot<float, BATCHES> {};
template <int BATCHES>
struct RowDot<double, BATCHES> : ScalarDot<double, BATCHES> {};

}  // namespace sddmm
