// What sums are kept in, and how one becomes a value of the result.
#pragma once

#include "gemm_core/numeric.cuh"

namespace sddmm {

using gemm_core::bf16;
using gemm_core::f16;
using gemm_core::i64;
using gemm_core::Numeric;
using gemm_core::u32;
using gemm_core::u16;

// Of products of T: double for double, else float.
template <class T>
using Sum = typename gemm_core::Select<sizeof(T) == 8, double, float>::type;

template <class T>
__device__ __forceinline__ Sum<T> widened(T x) {
  return Numeric<T>::to_float(x);
}
template <>
__device__ __forceinline__ double widened(double x) {
  return x;
}

// A sum, float or double, as a value of the result; never through double where neither is.
template <class OUT>
struct Narrow {
  template <class S>
  static __device__ __forceinline__ OUT from(S x) {
    return Numeric<OUT>::from_float(static_cast<float>(x));
  }
};
template <>
struct Narrow<double> {
  static __device__ __forceinline__ double from(double x) { return x; }
};

// Where results go: out[at] = alpha * sum * values[at], `at` the nonzero's place in the caller's
// order. values: null for none.
template <class T, class OUT>
struct Result {
  OUT* out;
  const T* values;
  Sum<T> alpha;

  __device__ __forceinline__ void store(i64 at, Sum<T> sum) const {
    sum *= alpha;
    if (values != nullptr) sum *= widened(values[at]);
    out[at] = Narrow<OUT>::from(sum);
  }

  // Calls each(store), where store(nonzero, sum) takes nonzeros in an order whose places in the
  // caller's `order` has; the common case, no order and no values, without a branch.
  template <class Each>
  __device__ __forceinline__ void in_order(const int* order, const Each& each) const {
    if (order == nullptr && values == nullptr) {
      each([&](int nonzero, Sum<T> sum) { out[nonzero] = Narrow<OUT>::from(sum * alpha); });
    } else {
      each([&](int nonzero, Sum<T> sum) {
        store(order == nullptr ? nonzero : order[nonzero], sum);
      });
    }
  }
};

}  // namespace sddmm
