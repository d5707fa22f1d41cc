// What kernels read that gather nonzeros by their row ids, and which of them a warp computes.
#pragma once

#include "sddmm/value.cuh"

namespace sddmm {

// T, OUT: the types of the operands and of the output.
template <class T, class OUT>
struct GatherArguments {
  const T *a, *b, *values;
  // The sums over earlier slices of k, at the positions of `out`; null for the first slice.
  const Sum<T>* partial_sums;
  OUT* out;
  const int *rows, *cols, *perm;  // (nnz,); perm may be null
  i64 nnz;
  i64 pitch_a, pitch_b;          // elements from row to row
  i64 head_a, head_b, head_out;  // elements from head to head
  i64 warps_per_head;
  int nnz_per_warp, heads, m, n, k;
  double alpha;

  // The operands of a head.
  __device__ __forceinline__ const T* a_of(i64 head) const { return a + head * head_a; }
  __device__ __forceinline__ const T* b_of(i64 head) const { return b + head * head_b; }
  __device__ __forceinline__ Result<T, OUT> result_of(i64 head) const {
    return {out + head * head_out, values, static_cast<Sum<T>>(alpha)};
  }
  // Stores the sum of one nonzero of a head.
  __device__ __forceinline__ void store(i64 head, i64 position, Sum<T> sum) const {
    if (partial_sums != nullptr) sum += partial_sums[head * head_out + position];
    result_of(head).store(position, sum);
  }
};

// Consecutive nonzeros of a head; there are none if there is no such head.
struct WarpShare {
  i64 head, begin, end;
};

template <int THREADS, class T, class OUT>
__device__ __forceinline__ WarpShare share_of_warp(const GatherArguments<T, OUT>& p, int thread = threadIdx.x) {
  const i64 warp = static_cast<i64>(blockIdx.x) * (THREADS / 32) + thread / 32;
  const i64 head = warp / p.warps_per_head;
  const i64 begin = (warp - head * p.warps_per_head) * p.nnz_per_warp;
  return {head, begin, begin + p.nnz_per_warp < p.nnz ? begin + p.nnz_per_warp : p.nnz};
}

}  // namespace sddmm
