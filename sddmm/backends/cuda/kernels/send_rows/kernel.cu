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
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
};

struct Arguments {
  const uint4* source;  // (heads, n) rows of `units` each
  const i64* rows;      // (count,): the numbers of the rows that are copied
  uint4* target;        // (heads, count, units)
  i64 head_units, row_units, count;  // from head to head and from row to row of the source
  int units, heads;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  constexpr int LANES = Config::LANES, BATCH = Config::BATCH;
  const i64 thread = static_cast<i64>(blockIdx.x) * Config::THREADS + threadIdx.x;
  const i64 groups = static_cast<i64>(gridDim.x) * Config::THREADS / LANES;
  const int lane = static_cast<int>(thread % LANES);
  for (int head = 0; head < p.heads; ++head) {
    const uint4* source = p.source + head * p.head_units;
    uint4* target = p.target + head * p.count * p.units;
    for (i64 first = thread / LANES * BATCH; first < p.count; first += groups * BATCH) {
      const uint4* from[BATCH];
#pragma unroll
      for (int j = 0; j < BATCH; ++j)
        from[j] = source + (first + j < p.count ? p.rows[first + j] : i64{0}) * p.row_units;
      for (int unit = lane; unit < p.units; unit += LANES) {
        uint4 part[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; ++j)
          if (first + j < p.count) part[j] = __ldcs(from[j] + unit);
#pragma unroll
        for (int j = 0; j < BATCH; ++j)
          if (first + j < p.count) target[(first + j) * p.units + unit] = part[j];
      }
    }
  }
}
