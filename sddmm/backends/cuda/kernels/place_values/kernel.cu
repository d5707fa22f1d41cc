// The values of some nonzeros, stored where these stand among all, of all heads. Adds to torch's
// scatter that positions have four bytes and that the loads of a thread are in flight together.
// Limit: four bytes, and twice those of a value, out of memory per nonzero.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"

using gemm_core::i64;

// What place_values/host.py chooses, by macro.
struct Config {
  // The type of the values.
  using Value = SDDMM_VALUE;
  // The number of nonzeros of a thread, whose loads are in flight together.
  static constexpr int ITEMS = SDDMM_ITEMS;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
};

struct Arguments {
  const Config::Value* part;  // (heads, count)
  const int* places;          // (count,): where each stands, no two the same
  Config::Value* values;      // (heads, nnz)
  i64 count, nnz;
  int heads;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  constexpr int ITEMS = Config::ITEMS;
  const i64 first = static_cast<i64>(blockIdx.x) * (ITEMS * Config::THREADS) + threadIdx.x;
  auto at = [&](int j) { return first + j * Config::THREADS; };
  int place[ITEMS];
#pragma unroll
  for (int j = 0; j < ITEMS; ++j)
    if (at(j) < p.count) place[j] = p.places[at(j)];
  for (int head = 0; head < p.heads; ++head) {
    Config::Value value[ITEMS];
#pragma unroll
    for (int j = 0; j < ITEMS; ++j)
      if (at(j) < p.count) value[j] = p.part[head * p.count + at(j)];
#pragma unroll
    for (int j = 0; j < ITEMS; ++j)
      if (at(j) < p.count) p.values[head * p.nnz + place[j]] = value[j];
  }
}
