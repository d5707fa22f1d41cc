// The weights of a range of nonzeros, in the order of the range, of all heads. Adds to what they are
// read from, an array in the caller's order, a copy that is read once, from one end to the other.
// Limit: a sector of 32 bytes out of L2 per weight.
#include "gemm_core/parameters.cuh"
#include "sddmm/value.cuh"

using namespace sddmm;

// What spmm_weights/host.py chooses, by macro.
struct Config {
  // The types of the values, of the factors and of the weights, their products.
  using Value = SDDMM_VALUE;
  using Factor = SDDMM_ELEMENT;
  using Weight = SDDMM_WEIGHT;
  // Whether there are factors.
  static constexpr bool HAS_FACTORS = SDDMM_HAS_FACTORS;
  // The number of nonzeros of a thread, whose loads are in flight together.
  static constexpr int ITEMS = SDDMM_ITEMS;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
};

struct Arguments {
  const Config::Value* values;    // (heads, nnz), in the caller's order
  const Config::Factor* factors;  // (nnz,); null without HAS_FACTORS
  const int* perm;                // (count,): the position of each nonzero of the range
  Config::Weight* weights;        // (heads, count)
  i64 head_values, count;         // elements from head to head; the nonzeros of the range
  int heads;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// The weight of the nonzero at a position. A template, so that only the branch that holds is compiled.
template <class C>
__device__ __forceinline__ typename C::Weight weight_at(const typename C::Value* values,
                                                        const typename C::Factor* factors,
                                                        int position) {
  if constexpr (C::HAS_FACTORS) {
    using S = typename C::Weight;
    return static_cast<S>(widened(values[position])) * static_cast<S>(widened(factors[position]));
  } else {
    return values[position];
  }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  constexpr int ITEMS = Config::ITEMS;
  const i64 first = static_cast<i64>(blockIdx.x) * (ITEMS * Config::THREADS) + threadIdx.x;
  auto at = [&](int j) { return first + j * Config::THREADS; };
  int position[ITEMS] = {};
#pragma unroll
  for (int j = 0; j < ITEMS; ++j)
    if (at(j) < p.count) position[j] = p.perm[at(j)];
  for (int head = 0; head < p.heads; ++head) {
    Config::Weight weight[ITEMS];
#pragma unroll
    for (int j = 0; j < ITEMS; ++j)
      weight[j] = weight_at<Config>(p.values + head * p.head_values, p.factors, position[j]);
#pragma unroll
    for (int j = 0; j < ITEMS; ++j)
      if (at(j) < p.count) p.weights[head * p.count + at(j)] = weight[j];
  }
}
