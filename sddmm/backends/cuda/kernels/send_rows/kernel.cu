// Chosen rows of a dense operand, one after another, in memory that may be another GPU's. Adds to a
// copy of packed rows that nothing is packed first, with few blocks, beside which others compute.
// Limit: the rate at which one GPU writes into another's memory.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"

using gemm_core::i64;

// What send_rows/host.py chooses, by macro.
struct Config {
  // The number of lanes that copy a row, 16 bytes each at a time.
  static constexpr int LANES = SDDMM_LANES;
  // The number of rows whose loads are in flight together.
  static constexpr int BATCH = SDDMM_BATCH;
  // The number of targets at most.
  static constexpr int MOST = SDDMM_MOST;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
};

struct Targets {
  uint4* at[Config::MOST];         // (heads, count, units) each
  const i64* rows[Config::MOST];   // (count,): the numbers of the rows that are copied there
  i64 count[Config::MOST];
};

struct Arguments {
  const uint4* source;        // (heads, n) rows of `units` each
  i64 head_units, row_units;  // from head to head and from row to row of the source
  Targets targets;            // the first `number` of them
  int units, heads, number;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// The rows of one target, by all blocks.
__device__ __forceinline__ void copy(const Arguments& p, const i64* rows, uint4* to, i64 count) {
  constexpr int LANES = Config::LANES, BATCH = Config::BATCH;
  const int thread = static_cast<int>(blockIdx.x) * Config::THREADS + threadIdx.x;
  const int groups = static_cast<int>(gridDim.x) * Config::THREADS / LANES;
  const int lane = thread % LANES;
  for (int head = 0; head < p.heads; ++head) {
    const uint4* source = p.source + head * p.head_units;
    uint4* target = to + head * count * p.units;
    for (i64 first = i64{thread / LANES} * BATCH; first < count; first += groups * BATCH) {
      const uint4* from[BATCH];
#pragma unroll
      for (int j = 0; j < BATCH; ++j)
        from[j] = source + (first + j < count ? rows[first + j] : i64{0}) * p.row_units;
#pragma unroll 1  // as more of them at a time need more registers than a thread has
      for (int unit = lane; unit < p.units; unit += LANES) {
        uint4 part[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; ++j)
          if (first + j < count) part[j] = __ldcs(from[j] + unit);
#pragma unroll
        for (int j = 0; j < BATCH; ++j)
          if (first + j < count) target[(first + j) * p.units + unit] = part[j];
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  for (int i = 0; i < p.number; ++i)
    copy(p, p.targets.rows[i], p.targets.at[i], p.targets.count[i]);
}
