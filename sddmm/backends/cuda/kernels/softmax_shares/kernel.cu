// The shares of row_softmax: equal numbers of nonzeros, of each of which a block computes the rows
// that begin there; rows longer than a share are cut. Adds a thread for each share, which searches
// where rows begin. Limit: the latency of two binary searches.
#include "gemm_core/parameters.cuh"
#include "sddmm/softmax_share.cuh"
#include "sddmm/value.cuh"

using namespace sddmm;

// What softmax_shares/host.py chooses, by macro.
struct Config {
  // The number of nonzeros of a share.
  static constexpr int SHARE = SDDMM_SHARE;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of 64-bit words that the host keeps for State.
  static constexpr int STATE_WORDS = SDDMM_STATE_WORDS;
};

// What the blocks of a launch count together: shares in which a cut row begins, finished blocks.
struct State {
  unsigned long long cuts, finished;
};
static_assert(sizeof(State) == 8 * Config::STATE_WORDS, "softmax_shares/host.py allocates these");

struct Arguments {
  const int* starts;  // the first nonzero of each row that has any, and the number of nonzeros
  SoftmaxShare* shares;
  // Zero before the launch; the launch sets next_state to zero for its successor.
  State *state, *next_state;
  i64* results;  // pinned host memory, -1: the cut rows, which the host polls
  int rows, share_count;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// The first row that begins at nonzero `at` or later.
__device__ __forceinline__ int first_row(const Arguments& p, i64 at) {
  int low = 0, high = p.rows;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (p.starts[middle] < at) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Writes share `index`; returns whether a cut row begins in it.
__device__ __forceinline__ bool write_share(const Arguments& p, int index) {
  const i64 share_begin = static_cast<i64>(index) * Config::SHARE;
  const int first = first_row(p, share_begin), last = first_row(p, share_begin + Config::SHARE);
  const int begin = p.starts[first], end = p.starts[last];
  // The row before the share's first, and the last that begins in the share, are cut if long.
  const int before = p.starts[first > 0 ? first - 1 : 0];
  const int last_begin = p.starts[last > 0 ? last - 1 : 0];
  const bool cut_before = begin > share_begin && begin - before > Config::SHARE;
  const bool is_cut = last > first && end - last_begin > Config::SHARE;
  const int whole_end = is_cut ? last_begin : end;
  p.shares[index] = {first,
                     last - first - (is_cut ? 1 : 0),
                     begin,
                     whole_end - begin,
                     cut_before ? before : begin,
                     begin,
                     whole_end,
                     end};
  return is_cut;
}

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  const int index = blockIdx.x * Config::THREADS + threadIdx.x;
  if (index == 0) *p.next_state = State{};
  if (index < p.share_count && write_share(p, index)) atomicAdd(&p.state->cuts, 1ull);
  // What the block wrote and counted must be visible before the block counts as finished.
  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(&p.state->finished, 1ull) + 1 < gridDim.x) return;
  p.results[0] = static_cast<i64>(atomicAdd(&p.state->cuts, 0ull));
}
