// Samples of all heads times S's values, in the type of the output. Adds a pass over the samples to a
// kernel whose warps have no time to read values. Limit: a sample, a value and a result per nonzero,
// out of memory.
#include "gemm_core/parameters.cuh"
#include "sddmm/value.cuh"

using namespace sddmm;

// What scale_samples/host.py chooses, by macro.
struct Config {
  // The types of the values and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of nonzeros of a thread, whose loads are in flight together.
  static constexpr int ITEMS = SDDMM_ITEMS;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
};

struct Arguments {
  const float* samples;           // (heads, nnz); may be `out`
  const Config::Element* values;  // (nnz,)
  Config::Output* out;            // (heads, nnz)
  i64 nnz;
  int blocks_per_head;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  constexpr int ITEMS = Config::ITEMS;
  const int head = blockIdx.x / p.blocks_per_head, block = blockIdx.x - head * p.blocks_per_head;
  const i64 first = static_cast<i64>(block) * (ITEMS * Config::THREADS) + threadIdx.x;
  auto at = [&](int j) { return first + j * Config::THREADS; };
  const float* const samples = p.samples + head * p.nnz;
  float sample[ITEMS];
  Config::Element value[ITEMS];
#pragma unroll
  for (int j = 0; j < ITEMS; ++j)
    if (at(j) < p.nnz) sample[j] = samples[at(j)], value[j] = load_read_only(p.values + at(j));
#pragma unroll
  for (int j = 0; j < ITEMS; ++j)
    if (at(j) < p.nnz)
      p.out[head * p.nnz + at(j)] = Narrow<Config::Output>::from(sample[j] * widened(value[j]));
}
