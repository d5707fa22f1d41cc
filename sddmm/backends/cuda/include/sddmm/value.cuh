// The type that products are summed in, and the conversion of a sum to a stored value.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/ld_global.cuh"

namespace sddmm {

using gemm_core::bf16;
using gemm_core::Bool;
using gemm_core::f16;
using gemm_core::i64;
using gemm_core::Numeric;
using gemm_core::u32;
using gemm_core::u16;
using gemm_core::ptx::load_read_only;

// The type of sums of products of T: double for double, else float.
template <class T>
using Sum = typename gemm_core::Select<sizeof(T) == 8, double, float>::type;

// x in the type of its sums.
template <class T>
__device__ __forceinline__ Sum<T> widened(T x) {
  return Numeric<T>::to_float(x);
}
template <>
__device__ __forceinline__ double widened(double x) {
  return x;
}

// Converts a float or a double to OUT; never through double where neither type is double.
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

// The output of a kernel: out[i] = alpha * sum * values[i], where i is the position of a nonzero in
// the caller's order, and values are ones if null.
template <class T, class OUT>
struct Result {
  OUT* out;
  const T* values;
  Sum<T> alpha;

  __device__ __forceinline__ void store(i64 position, Sum<T> sum) const {
    store(position, sum, values == nullptr ? T{} : load_read_only(values + position));
  }
  // The same with the nonzero's value, which is loaded already if there are any.
  __device__ __forceinline__ void store(i64 position, Sum<T> sum, T value) const {
    sum *= alpha;
    if (values != nullptr) sum *= widened(value);
    out[position] = Narrow<OUT>::from(sum);
  }
  // Begins to load the value of a nonzero, if there are any.
  __device__ __forceinline__ void prefetch(i64 position) const {
    if (values != nullptr) gemm_core::ptx::prefetch_l2(values + position);
  }
};

}  // namespace sddmm
