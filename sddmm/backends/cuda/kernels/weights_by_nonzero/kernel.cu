// The weights of several heads, those of each nonzero side by side, so that one read of any nonzero
// serves all heads. Adds to what they are read from, an array for each head, a copy.
// Limit: memory reads and writes each weight once.
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
  // The number of heads side by side.
  static constexpr int HEADS = SDDMM_HEADS;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
};

struct Arguments {
  const Config::Value* values;                          // (heads, nnz)
  const Config::Factor* factors;                        // (nnz,); null without HAS_FACTORS
  WeightsOfHeads<Config::Weight, Config::HEADS>* weights;  // (nnz,); of heads beyond `heads`, zeros
  i64 head_values, nnz;                                 // elements from head to head; nonzeros
  int heads;                                            // up to HEADS
};
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  const i64 i = static_cast<i64>(blockIdx.x) * Config::THREADS + threadIdx.x;
  if (i >= p.nnz) return;
  WeightsOfHeads<Config::Weight, Config::HEADS> weights{};
#pragma unroll
  for (int head = 0; head < Config::HEADS; ++head)
    if (head < p.heads)
      weights.of_head[head] = weight_at<Config>(p.values + head * p.head_values, p.factors, i);
  p.weights[i] = weights;
}
