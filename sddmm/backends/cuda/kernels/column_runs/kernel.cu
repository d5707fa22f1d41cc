// Counts the steps to the next column among a few pairs of neighbouring nonzeros, here and there in a
// pattern, and tells the host: a look that knows masks before anything is analysed. Limit: the latency
// of a load, and of a write to the host's memory.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"
#include "sddmm/warp.cuh"

using namespace sddmm;
using gemm_core::i64;
using u64 = unsigned long long;

// What column_runs/host.py chooses, by macro.
struct Config {
  // The type of the caller's columns: int or i64.
  using IndexType = SDDMM_INDEX;
  // The number of threads of the only block, a warp, each of which compares one pair in each place.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of places.
  static constexpr int PLACES = SDDMM_PLACES;
};

using IndexType = Config::IndexType;
static_assert(Config::THREADS == 32, "a warp votes");

struct Arguments {
  const IndexType* cols;  // (nnz,)
  u64* result;            // pinned host memory: the number of steps. The host polls it.
  i64 nnz;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  const i64 last_first = p.nnz > Config::THREADS ? p.nnz - Config::THREADS - 1 : 0;
  IndexType col[Config::PLACES][2];
#pragma unroll  // all loads are in flight together
  for (int place = 0; place < Config::PLACES; ++place) {
    const i64 i = last_first * place / (Config::PLACES - 1) + threadIdx.x;
    col[place][0] = i + 1 < p.nnz ? p.cols[i] : 0;
    col[place][1] = i + 1 < p.nnz ? p.cols[i + 1] : 0;
  }
  int steps = 0;
#pragma unroll
  for (int place = 0; place < Config::PLACES; ++place)
    steps += __popc(__ballot_sync(FULL_MASK, col[place][1] > col[place][0] &&
                                           col[place][1] - 1 == col[place][0]));
  if (threadIdx.x == 0) *p.result = static_cast<u64>(steps);
}
