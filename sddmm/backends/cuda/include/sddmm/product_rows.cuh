// The rows of X that products W X read, and the rows of the result that they store.
#pragma once

#include "sddmm/row_values.cuh"

namespace sddmm {

// C: the Config of a kernel, with Element, Output, LANES, LOAD_BYTES, STORE_BYTES, NO_TAIL, HAS_BEYOND
// and HAS_ADDEND as of spmm_gather. Arguments: its parameters.

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

// What lanes load that have no row.
__device__ const Chunk ZEROS = {};

// The rows of X, from a lane's first column on. Where chunks are aligned, none is cut by the end of a
// row, and a lane past the end loads the last one, which others load, too, and stores nothing: so no
// load has a guard.
template <class C, class Arguments>
struct DenseRows {
  using Element = typename C::Element;
  static constexpr bool IS_ALIGNED = C::LOAD_BYTES == sizeof(Chunk);
  const Arguments& p;
  const char *dense, *beyond;
  int elements;  // the number of those from the lane's first column to the end of a row
  __device__ __forceinline__ DenseRows(const Arguments& p, i64 head, int column)
      : p(p), elements(p.k - column) {
    const int last = p.k - CHUNK_ELEMENTS<Element>;
    if (IS_ALIGNED && !C::NO_TAIL && column > last) column = last;
    dense = reinterpret_cast<const char*>(p.dense + head * p.head_dense + column);
    beyond = C::HAS_BEYOND ? reinterpret_cast<const char*>(p.beyond + column) : nullptr;
  }
  __device__ __forceinline__ Chunk chunk(int col) const {
    return load_chunk<C::LOAD_BYTES, IS_ALIGNED>(row(col), 0, elements);
  }
  // The same if there is such a row, else zeros. The compiler clears and copies the registers of a load
  // that a branch guards; where lanes are few, loads of zeros take less time than that.
  __device__ __forceinline__ Chunk chunk_or_zeros(bool exists, int col) const {
    if constexpr (IS_ALIGNED && C::LANES <= 8) {
      const Chunk* const from = reinterpret_cast<const Chunk*>(row(col));
      return *(exists ? from : &ZEROS);
    } else {
      Chunk zeros{};
      if (exists) zeros = chunk(col);
      return zeros;
    }
  }

 private:
  __device__ __forceinline__ const Element* row(int col) const {
    const char* first = dense;
    int pitch = p.pitch_bytes;
    if constexpr (C::HAS_BEYOND)
      if (col >= p.first_beyond) first = beyond, pitch = p.pitch_beyond, col -= p.first_beyond;
    // A product of numbers without a sign is one instruction.
    const unsigned long long offset = static_cast<u32>(col);
    return reinterpret_cast<const Element*>(first + offset * static_cast<u32>(pitch));
  }
};

}  // namespace sddmm
