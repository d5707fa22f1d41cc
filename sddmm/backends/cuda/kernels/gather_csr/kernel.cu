// SDDMM of a CSR pattern in a single launch: adds to row_gather that each warp finds the rows of its
// nonzeros and checks its part of the indices, and reports that before it gathers. Limit: the host,
// where a pattern is small; a warp's search takes a fifth as long as its nonzeros otherwise.
#include "gemm_core/parameters.cuh"
#include "sddmm/csr_rows.cuh"
#include "sddmm/gather.cuh"

using namespace sddmm;
using u64 = unsigned long long;

// What row_gather/host.py and single_run.py choose, by macro: as row_gather's, and more.
struct Config {
  // The types of the operands, of the output and of the caller's indices.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  using IndexType = SDDMM_INDEX;
  // The number of bytes of one load; all rows start and end at multiples of it: 2, 4, 8, or 16 where
  // a lane's chunk has 16.
  static constexpr int LOAD_BYTES = SDDMM_LOAD_BYTES;
  // The number of bytes of a row that the lanes of a nonzero load in one pass.
  static constexpr int PASS_BYTES = SDDMM_PASS_BYTES;
  // Whether one pass loads a whole row.
  static constexpr bool ONE_PASS = SDDMM_ONE_PASS;
  // Whether rows end where a pass ends, so that no load needs a guard.
  static constexpr bool NO_TAIL = SDDMM_NO_TAIL;
  // The number of lanes that load a row, and of batches that a warp works on at once, each of as many
  // nonzeros as it has such lanes.
  static constexpr int LANES = SDDMM_LANES, BATCHES = SDDMM_BATCHES;
  // Whether odd nonzeros load the halves of 128 bytes in the opposite order.
  static constexpr bool SWAPPED = SDDMM_SWAPPED;
  // The most nonzeros of a warp.
  static constexpr int MAX_SHARE = SDDMM_MAX_SHARE;
  // The number of threads of a block, and of blocks that the registers of a multiprocessor must
  // hold.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
  // The number of bytes of dynamic shared memory of a block: of each warp, see Share.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Element = Config::Element;
using IndexType = Config::IndexType;
// The number of nonzeros whose rows a lane finds at once.
constexpr int ITEMS_PER_LANE = 8;

constexpr int CHUNK_BYTES = CHUNK_BYTES_OF<Config::LANES, Config::PASS_BYTES>;
using Rows = ClampedRows<Element, Config::LOAD_BYTES, Config::NO_TAIL, CHUNK_BYTES>;

// The indices of a warp's nonzeros, in shared memory.
struct Share {
  int rows[Config::MAX_SHARE], cols[Config::MAX_SHARE];
  int row_starts[32 * ITEMS_PER_LANE];  // see find_row_starts
};
static_assert(Config::THREADS / 32 * sizeof(Share) <= Config::SHARED_BYTES, "each warp has a share");

struct Arguments {
  const Element *a, *b, *values;
  Config::Output* out;
  const IndexType *crow_indices, *col_indices;  // (m + 1,) and (nnz,)
  // What the warps have counted; zero before the launch, which sets next_state to zero for its
  // successor.
  u64 *state, *next_state;
  // Pinned host memory: -1 until the pattern is checked, then whether it is invalid. The host polls
  // it.
  u64* result;
  i64 nnz, pitch_a, pitch_b;     // elements from row to row
  i64 head_a, head_b, head_out;  // elements from head to head
  int warps_per_head, nnz_per_warp, heads, m, n, k;
  double alpha;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// Loads the columns of a warp's nonzeros, and finds their rows. Returns whether columns are in range.
__device__ __forceinline__ bool load_share(const Arguments& p, i64 begin, i64 end, Share& share) {
  constexpr int ITEMS = 32 * ITEMS_PER_LANE;
  const int lane = threadIdx.x % 32;
  bool valid = true;
  int before = -1;  // the row of the nonzero before those that are loaded at once
  for (i64 first = begin; first < end; first += ITEMS) {
    IndexType col[ITEMS_PER_LANE];
#pragma unroll
    for (int j = 0; j < ITEMS_PER_LANE; ++j) {
      const i64 i = first + 32 * j + lane;
      col[j] = i < end ? p.col_indices[i] : 0;
    }
    if (first == begin && begin > 0) before = find_row(p.crow_indices, 0, p.m - 1, begin - 1);
    find_row_starts<ITEMS_PER_LANE>(p.crow_indices, p.m, first, before, share.row_starts);
#pragma unroll
    for (int j = 0; j < ITEMS_PER_LANE; ++j) {
      const i64 i = first + 32 * j + lane;
      const int starts[1] = {share.row_starts[32 * j + lane]};
      int row[1];
      find_rows(starts, before, row);
      if (i >= end) continue;
      valid &= static_cast<u64>(col[j]) < static_cast<u64>(p.n);
      share.rows[i - begin] = row[0];
      share.cols[i - begin] = static_cast<int>(col[j]);
    }
  }
  __syncwarp();
  return valid;
}

// Adds whether what a warp has checked is valid; the last of them reports.
__device__ __forceinline__ void publish(const Arguments& p, int warp, bool valid) {
  // One word counts both: the warps that have checked below, those that saw an error above.
  constexpr u64 INVALID = u64{1} << 32;
  const u64 own = 1 + (__all_sync(FULL_MASK, valid) ? 0 : INVALID);
  if (threadIdx.x % 32 != 0) return;
  if (warp == 0) {
    *p.next_state = 0;
    __threadfence();  // before `state` counts this warp
  }
  const u64 done = atomicAdd(p.state, own) + own;
  if (done % INVALID == static_cast<u64>(p.warps_per_head)) *p.result = done >= INVALID;
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  Share& share = reinterpret_cast<Share*>(shared)[threadIdx.x / 32];
  // Which nonzeros of which head this warp computes.
  const int warp = blockIdx.x * (Config::THREADS / 32) + threadIdx.x / 32;
  const int head = warp / p.warps_per_head;
  if (head >= p.heads) return;
  const i64 begin = static_cast<i64>(warp - head * p.warps_per_head) * p.nnz_per_warp;
  const i64 end = begin + p.nnz_per_warp < p.nnz ? begin + p.nnz_per_warp : p.nnz;

  bool valid = load_share(p, begin, end, share);
  if (head == 0) {
    for (i64 i = 32 * warp + threadIdx.x % 32; i <= p.m; i += 32 * 4 * p.warps_per_head)
      valid &= check_rows<4>(p.crow_indices, p.m, p.nnz, i, 32 * p.warps_per_head);
    publish(p, warp, valid);
  }
  const Result<Element, Config::Output> result{
      p.out + head * p.head_out + begin, p.values == nullptr ? nullptr : p.values + begin,
      static_cast<Sum<Element>>(p.alpha)};
  gather<Element, Config::LANES, Config::BATCHES, Config::PASS_BYTES, Config::ONE_PASS,
         Config::SWAPPED>(
      Rows{{p.a + head * p.head_a, p.pitch_a, p.k}, p.m - 1},
      Rows{{p.b + head * p.head_b, p.pitch_b, p.k}, p.n - 1}, share.rows, share.cols, nullptr, 0,
      static_cast<int>(end - begin), GROUP_NONZEROS<Config::LANES, Config::BATCHES>, p.k,
      [&](i64 position) { result.prefetch(position); },
      [&](i64 position, Sum<Element> sum) { result.store(position, sum); });
}
