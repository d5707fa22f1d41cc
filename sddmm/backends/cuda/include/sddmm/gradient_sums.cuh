// The sums of attention's gradients over the nonzeros of a row or of a column, of which a lane has its
// part, and the weights of nonzeros in them.
#pragma once

#include "sddmm/row_part.cuh"

namespace sddmm {

// What a nonzero adds by: the gradient of its score before it is scaled, and the weight of its row of V.
struct alignas(8) ScoreWeight {
  float grad, weight;
};

// key: grad * (row of K or Q); value: weight * (row of dO). VALUES: 0 where rows are summed, for dQ.
template <int KEYS, int VALUES, int ELEMENTS>
struct GradientSums {
  static constexpr int COUNT = (KEYS + VALUES) * ELEMENTS;
  float key[KEYS][ELEMENTS] = {};
  float value[VALUES > 0 ? VALUES : 1][ELEMENTS] = {};

  template <class Use>
  __device__ __forceinline__ void each(const Use& use) {
#pragma unroll
    for (int c = 0; c < KEYS; ++c)
#pragma unroll
      for (int e = 0; e < ELEMENTS; ++e) use(c * ELEMENTS + e, key[c][e]);
#pragma unroll
    for (int c = 0; c < VALUES; ++c)
#pragma unroll
      for (int e = 0; e < ELEMENTS; ++e) use((KEYS + c) * ELEMENTS + e, value[c][e]);
  }
  __device__ __forceinline__ void merge(const GradientSums& other) {
#pragma unroll
    for (int c = 0; c < KEYS; ++c)
#pragma unroll
      for (int e = 0; e < ELEMENTS; ++e) key[c][e] += other.key[c][e];
#pragma unroll
    for (int c = 0; c < VALUES; ++c)
#pragma unroll
      for (int e = 0; e < ELEMENTS; ++e) value[c][e] += other.value[c][e];
  }
  // As row number `row` of gradients of d and dv columns, which may be null. KEY_NO_TAIL,
  // VALUE_NO_TAIL: see store_row.
  template <int LANES, int STORE_BYTES, bool KEY_NO_TAIL, bool VALUE_NO_TAIL, class T>
  __device__ __forceinline__ void store(T* key_grad, T* value_grad, i64 row, int d, int dv,
                                        float scale) const {
    if (key_grad != nullptr)
      store_row<LANES, KEYS, STORE_BYTES, KEY_NO_TAIL>(key_grad + row * d, d, key, scale);
    if constexpr (VALUES > 0)
      if (value_grad != nullptr)
        store_row<LANES, VALUES, STORE_BYTES, VALUE_NO_TAIL>(value_grad + row * dv, dv, value, 1.f);
  }
};

}  // namespace sddmm
