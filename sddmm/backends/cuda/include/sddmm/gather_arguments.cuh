// The arguments of row_gather and gather_lines.
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

  // Which head a warp computes, of what nonzeros: those from begin_of to end_of(begin). There are none
  // if there is no such head.
  __device__ __forceinline__ i64 head_of(i64 warp) const { return warp / warps_per_head; }
  __device__ __forceinline__ i64 begin_of(i64 warp, i64 head) const {
    return (warp - head * warps_per_head) * nnz_per_warp;
  }
  __device__ __forceinline__ i64 end_of(i64 begin) const {
    return begin + nnz_per_warp < nnz ? begin + nnz_per_warp : nnz;
  }
  __device__ __forceinline__ Result<T, OUT> result_of(i64 head) const {
    return {out + head * head_out, values, static_cast<Sum<T>>(alpha)};
  }
};

}  // namespace sddmm
