// The weights of a range of nonzeros, in the order of the range, of all heads. Adds to what they are
// read from, an array in the caller's order, a copy that is read once, from one end to the other.
// Limit: a sector of 32 bytes out of L2 per weight, or per nonzero where its heads are side by side.
#include "gemm_core/parameters.cuh"
#include "sddmm/weights.cuh"

using namespace sddmm;

// What spmm_weights/host.py chooses, by macro.
struct Config {
  // The types of the values, of the factors and of the weights, their products.
  using Value = SDDMM_VALUE;
  using Factor = SDDMM_ELEMENT;
  using Weight = SDDMM_WEIGHT;
  // Whether there are factors.
  static constexpr bool HAS_FACTORS = SDDMM_HAS_FACTORS;
  // The number of heads whose values stand side by side; 1: each head has an array of its own.
  static constexpr int HEADS = SDDMM_HEADS;
  // The number of nonzeros of a thread, whose loads are in flight together.
  static constexpr int ITEMS = SDDMM_ITEMS;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
};

struct Arguments {
  const Config::Value* values;    // (heads, nnz), or (nnz, HEADS), in the caller's order
  const Config::Factor* factors;  // (nnz,); null without HAS_FACTORS
  const int* perm;                // (count,): the position of each nonzero of the range
  Config::Weight* weights;        // (heads, count)
  i64 head_values, count;         // elements from head to head, of arrays; nonzeros of the range
  int heads;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// Stores the weights of all heads of nonzeros at positions, which one load each reads.
template <class C, int ITEMS, class At>
__device__ __forceinline__ void store_heads(const Arguments& p, const int (&position)[ITEMS],
                                            const At& at) {
  using Heads = WeightsOfHeads<typename C::Value, C::HEADS>;
  static_assert(C::HEADS == 1 || !C::HAS_FACTORS, "they are multiplied in before");
  const auto* const values = reinterpret_cast<const Heads*>(p.values);
  Heads own[ITEMS];
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) own[j] = values[position[j]];
#pragma unroll
  for (int head = 0; head < C::HEADS; ++head)
#pragma unroll
    for (int j = 0; j < ITEMS; ++j)
      if (head < p.heads && at(j) < p.count) p.weights[head * p.count + at(j)] = own[j].of_head[head];
}

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  constexpr int ITEMS = Config::ITEMS;
  const i64 first = static_cast<i64>(blockIdx.x) * (ITEMS * Config::THREADS) + threadIdx.x;
  auto at = [&](int j) { return first + j * Config::THREADS; };
  int position[ITEMS] = {};
#pragma unroll
  for (int j = 0; j < ITEMS; ++j)
    if (at(j) < p.count) position[j] = p.perm[at(j)];
  if constexpr (Config::HEADS > 1) {
    store_heads<Config, ITEMS>(p, position, at);
    return;
  }
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
