// The weights of nonzeros, which are values or their products with factors.
#pragma once

#include "sddmm/value.cuh"

namespace sddmm {

// The weight of the nonzero at a position. A template, so that only the branch that holds is compiled.
// C has the types Value, Factor and Weight, and HAS_FACTORS.
template <class C>
__device__ __forceinline__ typename C::Weight weight_at(const typename C::Value* values,
                                                        const typename C::Factor* factors,
                                                        i64 position) {
  if constexpr (C::HAS_FACTORS) {
    using S = typename C::Weight;
    return static_cast<S>(widened(values[position])) * static_cast<S>(widened(factors[position]));
  } else {
    return values[position];
  }
}

// The weights of one nonzero in several heads, which one load reads.
template <class Weight, int HEADS>
struct alignas(HEADS * sizeof(Weight)) WeightsOfHeads {
  Weight of_head[HEADS];
};

}  // namespace sddmm
