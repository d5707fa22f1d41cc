// The rows of X that products W X read, and the rows of the result that they store.
#pragma once

#include "sddmm/row_values.cuh"

namespace sddmm {

// C: the Config of a kernel, with Element, Output, STORE_BYTES, NO_TAIL, HAS_BEYOND and HAS_ADDEND as
// of spmm_gather. Arguments: its parameters.

// The columns of the result that a lane computes: its chunk of a slice of a head.
template <class C, class Acc, class Arguments>
struct LaneColumns {
  static constexpr int ELEMENTS = CHUNK_ELEMENTS<typename C::Element>;
  typename C::Output* first;  // of row 0
  int pitch, elements;
  const Acc* alpha;
  const Arguments& p;
  __device__ __forceinline__ void store(int row, const Acc (&sums)[ELEMENTS]) const {
    Acc scaled[ELEMENTS];
    const Acc factor = *alpha;
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) scaled[i] = sums[i] * factor;
    i64 out_row = row;
    if constexpr (C::HAS_ADDEND) {
      const Acc* own = p.addend + static_cast<i64>(row) * p.k + (first - p.out);
#pragma unroll
      for (int i = 0; i < ELEMENTS; ++i)
        if (C::NO_TAIL || i < elements) scaled[i] += own[i];
      out_row = p.out_rows[row];
    }
    store_elements<C::STORE_BYTES>(first + out_row * pitch, scaled, elements);
  }
  __device__ __forceinline__ void store_empty(int row) const {
    const Acc zeros[ELEMENTS] = {};
    store(row, zeros);
  }
};

// The rows of X, from a lane's first column on.
template <class C, class Arguments>
struct DenseRows {
  using Element = typename C::Element;
  const Arguments& p;
  const char *dense, *beyond;
  __device__ __forceinline__ DenseRows(const Arguments& p, i64 head, int column)
      : p(p),
        dense(reinterpret_cast<const char*>(p.dense + head * p.head_dense + column)),
        beyond(C::HAS_BEYOND ? reinterpret_cast<const char*>(p.beyond + column) : nullptr) {}
  __device__ __forceinline__ const Element* row(int col) const {
    const char* first = dense;
    int pitch = p.pitch_bytes;
    if constexpr (C::HAS_BEYOND)
      if (col >= p.first_beyond) first = beyond, pitch = p.pitch_beyond, col -= p.first_beyond;
    return reinterpret_cast<const Element*>(first + static_cast<i64>(col) * pitch);
  }
};

}  // namespace sddmm
