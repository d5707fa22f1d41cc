// Where each row begins among nonzeros sorted by row, and whether one has more than `longest` of them.
// Adds a thread for each nonzero, which looks at the one before it.
// Limit: reading the row ids, and storing an offset for each row, once.
#include "gemm_core/parameters.cuh"
#include "sddmm/value.cuh"
#include "sddmm/warp.cuh"

using namespace sddmm;

// What row_starts/host.py chooses, by macro.
struct Config {
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of 64-bit words that the host keeps for State.
  static constexpr int STATE_WORDS = SDDMM_STATE_WORDS;
};

// What the blocks of a launch count together: warps that found a long row, and finished blocks.
struct State {
  unsigned long long with_long_row, finished;
};
static_assert(sizeof(State) == 8 * Config::STATE_WORDS, "row_starts/host.py allocates these words");

struct Arguments {
  const int* rows;  // (nnz,), ascending; of others all that is written is of no use
  int* offsets;     // (m + 1,)
  // Zero before the launch; the launch sets next_state to zero for its successor.
  State *state, *next_state;
  i64* results;  // pinned host memory, -1: the warps that found a long row, which the host polls
  int nnz, m;
  int longest;  // the most nonzeros of a row that is not long
};
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.next_state = State{};
  const i64 i = static_cast<i64>(blockIdx.x) * Config::THREADS + threadIdx.x;
  // The host may launch this before the analysis has checked the rows, so they may be any numbers:
  // clamped, they lead to no store outside `offsets`.
  auto row_of = [&](i64 at) {
    const int row = at < 0 ? -1 : at < p.nnz ? p.rows[at] : p.m;
    return row < -1 ? -1 : row > p.m ? p.m : row;
  };
  const int row = row_of(i);
  fill(p.offsets, row_of(i - 1), row, static_cast<int>(i));
  const bool is_long = i + p.longest < p.nnz && row == row_of(i + p.longest);
  const bool any_long = __ballot_sync(FULL_MASK, is_long) != 0;
  if (any_long && threadIdx.x % 32 == 0) atomicAdd(&p.state->with_long_row, 1ull);
  // What the block counted must be visible before the block counts as finished.
  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(&p.state->finished, 1ull) + 1 < gridDim.x) return;
  p.results[0] = static_cast<i64>(atomicAdd(&p.state->with_long_row, 0ull));
}
