// What a plan must know of a pattern, in one pass over it: is it valid, how is it ordered, the row of
// each nonzero, how many nonzeros each tile has, and these counts summed up. Limit: the bytes of the
// indices.
#include "gemm_core/numeric.cuh"

using gemm_core::i64;
using gemm_core::u32;
using u64 = unsigned long long;

using IndexType = SDDMM_INDEX;
constexpr bool CSR = SDDMM_CSR;
constexpr int THREADS = 256, EACH = 8, WARPS = THREADS / 32;  // EACH: nonzeros a thread
constexpr int SPAN = THREADS * EACH;
constexpr u32 ALL = 0xffffffff;

// Bits of what is found (analysis.py).
constexpr u32 INVALID = 1, ROWS_FALL = 2, COLUMNS_FALL = 4;

// found; tiles that are not empty, those of at least `least` nonzeros, and what these hold.
constexpr int RESULTS = 4;

struct Arguments {
  const IndexType *major, *cols;  // crow (m + 1,) of CSR, else the rows, (nnz,)
  int *rows, *cols_32;            // results (nnz,), or null
  int* counts;  // of nonzeros by tile, along the rows of tiles, zeros before; or null
  u64* state;   // RESULTS and the blocks that are done: zeros, before and after
  u64* results;  // RESULTS, in memory of the host
  i64 nnz;
  int m, n, block_m, block_n, least;
};

// The last of rows low .. high that begins at or before nonzero i, by a warp.
__device__ __forceinline__ int row_of_warp(const IndexType* crow, int low, int high, i64 i) {
  while (low < high) {
    const int step = (high - low + 31) / 32, at = low + (static_cast<int>(threadIdx.x) % 32 + 1) * step;
    const int before = __popc(__ballot_sync(ALL, at <= high && at > low && crow[at] <= i));
    low += before * step;
    high = low + step - 1 < high ? low + step - 1 : high;
  }
  return low;
}

// The largest of entries 0 .. i instead of entry i, by all threads of the block.
__device__ __forceinline__ void running_largest(int* entries, int* by_warp) {
  int* const own = entries + threadIdx.x * EACH;
  for (int j = 1; j < EACH; ++j) own[j] = own[j] > own[j - 1] ? own[j] : own[j - 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int largest = own[EACH - 1];
  for (int apart = 1; apart < 32; apart *= 2) {
    const int other = __shfl_up_sync(ALL, largest, apart);
    if (lane >= apart && other > largest) largest = other;
  }
  if (lane == 31) by_warp[warp] = largest;
  __syncthreads();
  int before = __shfl_up_sync(ALL, largest, 1);
  if (lane == 0) before = 0;
  for (int w = 0; w < warp; ++w) before = by_warp[w] > before ? by_warp[w] : before;
  for (int j = 0; j < EACH; ++j) own[j] = own[j] > before ? own[j] : before;
  __syncthreads();
}

// A block's part of shared memory.
struct Shared {
  int rows[SPAN];  // of its nonzeros, counted from `low`
  int by_warp[WARPS];
  int low, high;  // the rows of its first and of its last nonzero
  u64 sums[WARPS][RESULTS];
};

// Fills `shared` with the rows of nonzeros begin .. last, by all threads of the block.
__device__ __forceinline__ void find_rows(const Arguments& p, i64 begin, i64 last, Shared& shared) {
  if (threadIdx.x < 64) {
    const int row = row_of_warp(p.major, 0, p.m - 1, threadIdx.x < 32 ? begin : last);
    if (threadIdx.x == 0) shared.low = row;
    if (threadIdx.x == 32) shared.high = row;
  }
  for (int i = threadIdx.x; i < SPAN; i += THREADS) shared.rows[i] = 0;
  __syncthreads();
  // Where rows begin: of those that begin at one place, all but the last are empty.
  for (int row = shared.low + 1 + threadIdx.x; row <= shared.high; row += THREADS) {
    const i64 at = p.major[row] - begin;
    if (at >= 0 && at < SPAN) atomicMax(shared.rows + at, row - shared.low);
  }
  __syncthreads();
  running_largest(shared.rows, shared.by_warp);
}

__device__ __forceinline__ u32 check_crow(const Arguments& p, i64 i) {
  if (i > p.m) return 0;
  const IndexType begin = p.major[i];
  if (i == 0 && begin != 0) return INVALID;
  return begin <= (i < p.m ? p.major[i + 1] : p.nnz) && (i < p.m || begin == p.nnz) ? 0 : INVALID;
}

// What a thread adds to the results.
struct Seen {
  u32 found = 0;
  u64 filled = 0, worth = 0, held = 0;

  // `more` nonzeros of a tile that had `before` already, whoever comes first.
  __device__ __forceinline__ void count(int before, int more, int least) {
    filled += before == 0;
    worth += before < least && before + more >= least;
    if (before + more >= least) held += before < least ? before + more : more;
  }
};

// Checks and keeps nonzero i; its tile, or -1.
__device__ __forceinline__ int visit(const Arguments& p, i64 i, i64 row, bool continues, i64 col,
                                     Seen& seen) {
  if (continues && p.cols[i - 1] > col) seen.found |= COLUMNS_FALL;
  if (p.rows != nullptr) p.rows[i] = static_cast<int>(row);
  if (p.cols_32 != nullptr) p.cols_32[i] = static_cast<int>(col);
  if (row < 0 || row >= p.m || col < 0 || col >= p.n) {
    seen.found |= INVALID;
    return -1;
  }
  const int across = (p.n + p.block_n - 1) / p.block_n;
  return static_cast<int>(row) / p.block_m * across + static_cast<int>(col) / p.block_n;
}

// The nonzeros from `begin` on, a block's; all reads of a thread are under way together.
__device__ __forceinline__ void visit_all(const Arguments& p, i64 begin, const Shared& shared,
                                          Seen& seen) {
  i64 cols[EACH], rows[EACH];
  int tiles[EACH], more[EACH], before[EACH];
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const i64 i = begin + j * THREADS + threadIdx.x;
    cols[j] = i < p.nnz ? p.cols[i] : 0;
    rows[j] = CSR || i >= p.nnz ? 0 : p.major[i];
  }
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const int here = j * THREADS + threadIdx.x;
    const i64 i = begin + here;
    tiles[j] = -1;
    if (i >= p.nnz) continue;
    bool continues;  // the row of the nonzero before
    if constexpr (CSR) {
      rows[j] = p.m > 0 ? shared.low + shared.rows[here] : -1;
      continues = here > 0 ? shared.rows[here] == shared.rows[here - 1]
                           : p.m > 0 && p.major[shared.low] < i;
    } else {
      const i64 previous = i > 0 ? p.major[i - 1] : -1;
      continues = i > 0 && previous == rows[j];
      if (i > 0 && previous > rows[j]) seen.found |= ROWS_FALL;
    }
    tiles[j] = visit(p, i, rows[j], continues, cols[j], seen);
  }
  if (p.counts == nullptr) return;
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    // One addition for all lanes of a tile: they are neighbours, and tiles may be very full.
    const u32 alike = __match_any_sync(ALL, tiles[j]);
    const bool first = tiles[j] >= 0 && threadIdx.x % 32 == __ffs(alike) - 1;
    more[j] = first ? __popc(alike) : 0;
    before[j] = first ? atomicAdd(p.counts + tiles[j], more[j]) : 0;
  }
#pragma unroll
  for (int j = 0; j < EACH; ++j)
    if (more[j] > 0) seen.count(before[j], more[j], p.least);
}

template <class T>
__device__ __forceinline__ T of_warp(T mine) {
  for (int apart = 16; apart > 0; apart /= 2) mine += __shfl_xor_sync(ALL, mine, apart);
  return mine;
}

// Adds up what the block has seen; the last block of all hands the results over.
__device__ __forceinline__ void add_up(const Arguments& p, const Seen& seen,
                                       u64 (&sums)[WARPS][RESULTS]) {
  u32 found = seen.found;
  for (int apart = 16; apart > 0; apart /= 2) found |= __shfl_xor_sync(ALL, found, apart);
  const u64 filled = of_warp(seen.filled), worth = of_warp(seen.worth), held = of_warp(seen.held);
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) {
    sums[warp][0] = found, sums[warp][1] = filled, sums[warp][2] = worth, sums[warp][3] = held;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  u64 block[RESULTS] = {};
  for (int w = 0; w < WARPS; ++w) {
    block[0] |= sums[w][0];
    for (int i = 1; i < RESULTS; ++i) block[i] += sums[w][i];
  }
  if (block[0] != 0) atomicOr(p.state, block[0]);
  for (int i = 1; i < RESULTS; ++i)
    if (block[i] != 0) atomicAdd(p.state + i, block[i]);
  __threadfence();
  if (atomicAdd(p.state + RESULTS, u64{1}) + 1 < gridDim.x) return;
  __threadfence();
  for (int i = 0; i < RESULTS; ++i) p.results[i] = atomicExch(p.state + i, u64{0});
  atomicExch(p.state + RESULTS, u64{0});
}

// A block takes SPAN entries of crow and as many nonzeros.
extern "C" __global__ void __launch_bounds__(THREADS) sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  Shared& block = *reinterpret_cast<Shared*>(shared);
  const i64 begin = static_cast<i64>(blockIdx.x) * SPAN;
  const i64 last = (begin + SPAN < p.nnz ? begin + SPAN : p.nnz) - 1;
  Seen seen;
  if constexpr (CSR) {
    for (int j = 0; j < EACH; ++j) seen.found |= check_crow(p, begin + j * THREADS + threadIdx.x);
    if (begin < p.nnz && p.m > 0) find_rows(p, begin, last, block);
  }
  visit_all(p, begin, block, seen);
  add_up(p, seen, block.sums);
}
