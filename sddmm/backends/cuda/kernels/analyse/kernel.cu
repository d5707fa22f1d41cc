// What a plan must know of a pattern, in one pass over it: is it valid, how is it ordered, how evenly
// is it spread; and, as it is asked, the row of each nonzero, how many nonzeros each tile has, these
// counts summed up, and where the nonzeros of each row begin in each column of tiles. Limit: its
// instructions; of a small pattern, the steps that wait for each other.
#include "gemm_core/numeric.cuh"

using gemm_core::i64;
using gemm_core::u32;
using u64 = unsigned long long;

using IndexType = SDDMM_INDEX;
constexpr bool CSR = SDDMM_CSR;
constexpr int THREADS = 256, EACH = 8, WARPS = THREADS / 32;  // EACH: nonzeros a thread
constexpr int SPAN = THREADS * EACH;
constexpr int WINDOW = 512;  // tiles that a block counts by itself before it adds to memory
constexpr u32 ALL = 0xffffffff;

// Bits of what is found, in the order of `Results`.
constexpr u32 INVALID = 1, ROWS_FALL = 2, COLUMNS_FALL = 4;
constexpr int BITS = 3;

// What is counted where tiles are: those not empty, those of at least `least` nonzeros, and what these
// hold.
constexpr int COUNTED = 3;

// Of the whole pattern. A segment is a part of a row, as wide as a tile, that is not empty, as the
// nonzeros come.
struct Results {
  u64 segments, counted[COUNTED], found[BITS];
};
// Of the blocks that are done: how many, above DONE_BITS, and their segments, added at once; and counts.
struct State {
  u64 done, counted[COUNTED];
};
constexpr int DONE_BITS = 40;

// A division by a constant of the launch (analysis.py: _reciprocal).
struct Divisor {
  u32 factor;
  int shift;

  __device__ __forceinline__ int operator()(int x) const {
    return static_cast<int>(static_cast<u64>(x) * factor >> shift);
  }
};

struct Arguments {
  const IndexType *major, *cols;  // crow (m + 1,) of CSR, else the rows, (nnz,)
  int *rows, *cols_32;            // results (nnz,), or null
  int* counts;  // of nonzeros by tile, along the rows of tiles, zeros before; or null
  // Result (cells,), or null: entry row * (across + 1) + x is the first nonzero of that row in the x-th
  // column of tiles, or the first behind where it would be; the last has none.
  int* starts;
  State *state, *next;  // zeros before; the next launch's is made so
  // In memory of the host: zeros before, but for the segments, which come last; the host looks at them.
  Results* results;
  i64 nnz;
  int m, n, across, least, cells;  // across: tiles
  Divisor block_m, block_n;
};

// The last of rows low .. high that begins at or before nonzero i, by a warp.
__device__ __forceinline__ int row_of_warp(const IndexType* crow, int low, int high, i64 i) {
  constexpr int PROBES = 4;  // a lane, all under way together
  while (low < high) {
    const int step = (high - low + 32 * PROBES - 1) / (32 * PROBES);
    bool begins[PROBES];
#pragma unroll
    for (int j = 0; j < PROBES; ++j) {
      const i64 at = low + static_cast<i64>(j * 32 + static_cast<int>(threadIdx.x) % 32 + 1) * step;
      begins[j] = at <= high && crow[at] <= i;
    }
    int before = 0;
#pragma unroll
    for (int j = 0; j < PROBES; ++j) before += __popc(__ballot_sync(ALL, begins[j]));
    low += before * step;
    high = low + step - 1 < high ? low + step - 1 : high;
  }
  return low;
}

// Where entry i lies in shared memory, so that EACH entries a thread, one after the other, are read by a
// warp without bank conflicts.
__device__ __forceinline__ int padded(int i) { return i + i / EACH; }

// The largest of entries 0 .. i instead of entry i, by all threads of the block.
__device__ __forceinline__ void running_largest(int* entries, int* by_warp) {
  int* const own = entries + padded(threadIdx.x * EACH);
  int upto[EACH];
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    upto[j] = own[j];
    if (j > 0 && upto[j - 1] > upto[j]) upto[j] = upto[j - 1];
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int largest = upto[EACH - 1];
  for (int apart = 1; apart < 32; apart *= 2) {
    const int other = __shfl_up_sync(ALL, largest, apart);
    if (lane >= apart && other > largest) largest = other;
  }
  if (lane == 31) by_warp[warp] = largest;
  __syncthreads();
  int before = __shfl_up_sync(ALL, largest, 1);
  if (lane == 0) before = 0;
  for (int w = 0; w < warp; ++w) before = by_warp[w] > before ? by_warp[w] : before;
#pragma unroll
  for (int j = 0; j < EACH; ++j) own[j] = upto[j] > before ? upto[j] : before;
  __syncthreads();
}

// What a warp has seen.
struct Sums {
  u32 found, segments;
  u64 counted[COUNTED];
};

// A block's part of shared memory.
struct Shared {
  int rows[SPAN + SPAN / EACH];  // of its nonzeros, counted from `low`; see padded
  int by_warp[WARPS];
  int before, low, high;  // the rows of the nonzero before its first, of its first and of its last
  int counts[WINDOW];     // of nonzeros in the tiles from that row's on
  Sums sums[WARPS];
};
static_assert(sizeof(Shared) <= SDDMM_SHARED_BYTES, "");

// The rows of the nonzeros around those begin .. last, a block's, into `shared`, by its first warps.
__device__ __forceinline__ void find_first_and_last(const Arguments& p, i64 begin, i64 last,
                                                    Shared& shared) {
  const int warp = threadIdx.x / 32;
  if (warp < 3) {
    const int row = row_of_warp(p.major, 0, p.m - 1, warp == 0 ? begin : warp == 1 ? last : begin - 1);
    if (threadIdx.x % 32 == 0) (warp == 0 ? shared.low : warp == 1 ? shared.high : shared.before) = row;
  }
  for (int i = threadIdx.x; i < SPAN; i += THREADS) shared.rows[padded(i)] = 0;
  __syncthreads();
}

// Then those of the nonzeros themselves, by all threads of the block.
__device__ __forceinline__ void find_rows(const Arguments& p, i64 begin, Shared& shared) {
  // Where rows begin: of those that begin at one place, all but the last are empty.
  for (int first = shared.low + 1 + threadIdx.x; first <= shared.high; first += EACH * THREADS) {
    i64 at[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const int row = first + j * THREADS;
      at[j] = row <= shared.high ? p.major[row] - begin : -1;
    }
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      if (at[j] < 0 || at[j] >= SPAN) continue;
      atomicMax(shared.rows + padded(static_cast<int>(at[j])), first + j * THREADS - shared.low);
    }
  }
  __syncthreads();
  running_largest(shared.rows, shared.by_warp);
}

// A thread's entries of crow, of those that the block checks, from `begin` on; and the ones behind them.
struct Crow {
  IndexType at[EACH], next[EACH];

  __device__ __forceinline__ Crow(const Arguments& p, i64 begin) {
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const i64 i = begin + j * THREADS + threadIdx.x;
      at[j] = i <= p.m ? p.major[i] : 0;
      next[j] = i < p.m ? p.major[i + 1] : p.nnz;
    }
  }
  __device__ __forceinline__ u32 check(const Arguments& p, i64 begin) const {
    bool valid = true;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const i64 i = begin + j * THREADS + threadIdx.x;
      if (i <= p.m) valid &= at[j] <= next[j] && (i > 0 || at[j] == 0) && (i < p.m || at[j] == p.nnz);
    }
    return valid ? 0 : INVALID;
  }
};

// What a thread adds to the results.
struct Seen {
  u32 found = 0, segments = 0, filled = 0, worth = 0;
  u64 held = 0;

  // `more` nonzeros of a tile that had `before` already, whoever comes first.
  __device__ __forceinline__ void count(int before, int more, int least) {
    filled += before == 0;
    worth += before < least && before + more >= least;
    if (before + more >= least) held += before < least ? before + more : more;
  }
};

// entries[after + 1 .. last] = value for each lane of a warp, many by all lanes together.
__device__ __forceinline__ void fill(int* entries, int after, int last, int value) {
  constexpr int FEW = 8;
  const int lane = threadIdx.x % 32;
  for (u32 many = __ballot_sync(ALL, last - after > FEW); many != 0; many &= many - 1) {
    const int from = __ffs(many) - 1;
    const int end = __shfl_sync(ALL, last, from), entry = __shfl_sync(ALL, value, from);
    for (int at = __shfl_sync(ALL, after, from) + 1 + lane; at <= end; at += 32) entries[at] = entry;
  }
  if (last - after > FEW) return;
#pragma unroll 1
  while (after < last) entries[++after] = value;
}

// A thread's nonzeros, and those before them: entry j is nonzero j * THREADS + threadIdx.x of the block.
struct Mine {
  IndexType col[EACH], col_before[EACH], row[EACH], row_before[EACH];  // no rows for CSR

  // All reads are under way together.
  __device__ __forceinline__ Mine(const Arguments& p, i64 begin) {
    const IndexType *const cols = p.cols + begin, *const major = p.major + begin;
    const i64 left = p.nnz - begin;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const int i = j * THREADS + threadIdx.x;
      const bool here = i < left, before = i <= left && (i > 0 || begin > 0);
      col[j] = here ? cols[i] : 0;
      col_before[j] = before ? cols[i - 1] : 0;
      row[j] = CSR || !here ? 0 : major[i];
      row_before[j] = CSR || !before ? 0 : major[i - 1];
    }
  }
  __device__ __forceinline__ IndexType row_of(int j, const Shared& shared) const {
    return CSR ? shared.low + shared.rows[padded(j * THREADS + threadIdx.x)] : row[j];
  }
  __device__ __forceinline__ IndexType row_of_before(int j, const Shared& shared) const {
    const int i = j * THREADS + threadIdx.x;
    if (!CSR) return row_before[j];
    return i > 0 ? shared.low + shared.rows[padded(i - 1)] : shared.before;
  }
};

__device__ __forceinline__ bool inside(IndexType x, int bound) {
  return static_cast<u64>(x) < static_cast<u64>(bound);
}

// Of `starts`: the last entry that is not behind a nonzero. Of one outside the matrix: any number.
__device__ __forceinline__ int cell(const Arguments& p, IndexType row, IndexType col) {
  return static_cast<int>(static_cast<u32>(row) * static_cast<u32>(p.across + 1) +
                          static_cast<u32>(p.block_n(static_cast<int>(col))));
}

// How many lanes from this one on have this tile, if it is the first of them; else 0.
__device__ __forceinline__ int run_of(int tile) {
  const int lane = threadIdx.x % 32, before = __shfl_up_sync(ALL, tile, 1);
  const bool first = lane == 0 || before != tile;
  const u32 others = __ballot_sync(ALL, first) & ~(1u << lane) & (ALL << lane);
  return !first || tile < 0 ? 0 : (others == 0 ? 32 : __ffs(others) - 1) - lane;
}

// The first tile of the row of tiles where the nonzeros from `begin` on, a block's, begin.
__device__ __forceinline__ int first_tile(const Arguments& p, i64 begin, const Shared& shared) {
  const IndexType row = CSR ? shared.low : begin < p.nnz ? p.major[begin] : 0;
  return inside(row, p.m) ? p.block_m(static_cast<int>(row)) * p.across : 0;
}

// Adds a block's nonzeros to the counts of their tiles, -1 for none: those of near rows in `window`
// first, as many rows add to the same few tiles.
__device__ __forceinline__ void count_tiles(const Arguments& p, const int (&tiles)[EACH], int first,
                                            int* window, Seen& seen) {
  for (int i = threadIdx.x; i < WINDOW; i += THREADS) window[i] = 0;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const int more = run_of(tiles[j]);
    if (more == 0) continue;
    if (tiles[j] >= first && tiles[j] - first < WINDOW)
      atomicAdd(window + tiles[j] - first, more);
    else
      seen.count(atomicAdd(p.counts + tiles[j], more), more, p.least);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < WINDOW; i += THREADS)
    if (window[i] > 0) seen.count(atomicAdd(p.counts + first + i, window[i]), window[i], p.least);
}

// The nonzeros from `begin` on, a block's, and what is behind the last of all.
__device__ __forceinline__ void visit_all(const Arguments& p, i64 begin, const Mine& mine,
                                          Shared& shared, Seen& seen) {
  const int left = static_cast<int>(p.nnz - begin < SPAN ? p.nnz - begin : SPAN);
  int tiles[EACH];
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const int i = j * THREADS + threadIdx.x;
    const bool here = i < left, behind = i == left, follows = i > 0 || begin > 0;
    const IndexType row = mine.row_of(j, shared), row_before = mine.row_of_before(j, shared);
    const IndexType col = mine.col[j], col_before = mine.col_before[j];
    const bool valid = inside(col, p.n) && inside(row, p.m);
    const int at = cell(p, row, col), before = follows ? cell(p, row_before, col_before) : -1;
    if (here) {
      if (!valid) seen.found |= INVALID;
      if (follows && row_before > row) seen.found |= ROWS_FALL;
      if (follows && row_before == row && col_before > col) seen.found |= COLUMNS_FALL;
      seen.segments += at != before;
      if (p.rows != nullptr) p.rows[begin + i] = static_cast<int>(row);
      if (p.cols_32 != nullptr) p.cols_32[begin + i] = static_cast<int>(col);
    }
    tiles[j] = here && valid && p.counts != nullptr
                   ? p.block_m(static_cast<int>(row)) * p.across + p.block_n(static_cast<int>(col))
                   : -1;
    if (p.starts == nullptr) continue;
    const int last = here && valid ? at : behind ? p.cells - 1 : -1;
    fill(p.starts, before > -1 ? before : -1, last, static_cast<int>(begin) + i);
  }
  if (p.counts != nullptr) count_tiles(p, tiles, first_tile(p, begin, shared), shared.counts, seen);
}

template <class T>
__device__ __forceinline__ T of_warp(T mine) {
  for (int apart = 16; apart > 0; apart /= 2) mine += __shfl_xor_sync(ALL, mine, apart);
  return mine;
}

// A warp's part of what the block has seen, for all threads of the block.
__device__ __forceinline__ void hand_over(const Arguments& p, const Seen& seen, Shared& shared) {
  u32 found = seen.found;
  for (int apart = 16; apart > 0; apart /= 2) found |= __shfl_xor_sync(ALL, found, apart);
  Sums sums{found, of_warp(seen.segments), {}};
  if (p.least > 0) {
    sums.counted[0] = of_warp(seen.filled);
    sums.counted[1] = of_warp(seen.worth);
    sums.counted[2] = of_warp(seen.held);
  }
  if (threadIdx.x % 32 == 0) shared.sums[threadIdx.x / 32] = sums;
  __syncthreads();
}

// Adds what the block has seen to the state; the last block of all writes the results. By one thread. As
// few steps that wait for each other as can be: for a small pattern they are most of the time.
__device__ __forceinline__ void add_up(const Arguments& p, const Sums (&sums)[WARPS]) {
  u32 found = 0;
  u64 done = u64{1} << DONE_BITS, counted[COUNTED] = {};
  for (const Sums& each : sums) {
    found |= each.found;
    done += each.segments;
    for (int i = 0; i < COUNTED; ++i) counted[i] += each.counted[i];
  }
  for (int bit = 0; bit < BITS; ++bit)
    if (found >> bit & 1) p.results->found[bit] = 1;
  if (p.least > 0)
    for (int i = 0; i < COUNTED; ++i) atomicAdd(p.state->counted + i, counted[i]);
  if (blockIdx.x == 0) *p.next = State{};
  // All that is written must be seen by who sees that the block is done: by the host, or a block.
  if (found != 0) __threadfence_system();
  if (p.least > 0 || blockIdx.x == 0) __threadfence();
  done += atomicAdd(&p.state->done, done);
  if (done >> DONE_BITS < gridDim.x) return;
  if (p.least > 0) {
    __threadfence();
    for (int i = 0; i < COUNTED; ++i) p.results->counted[i] = atomicAdd(p.state->counted + i, u64{0});
    __threadfence_system();
  }
  p.results->segments = done & ((u64{1} << DONE_BITS) - 1);
}

// A block takes SPAN entries of crow and as many nonzeros.
extern "C" __global__ void __launch_bounds__(THREADS, sizeof(IndexType) == 4 ? 4 : 2)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  Shared& block = *reinterpret_cast<Shared*>(shared);
  const i64 begin = static_cast<i64>(blockIdx.x) * SPAN;
  const i64 last = (begin + SPAN < p.nnz ? begin + SPAN : p.nnz) - 1;
  const Mine mine(p, begin);
  const bool any = begin <= p.nnz && p.m > 0;
  Seen seen;
  if constexpr (CSR) {
    const Crow crow(p, begin);
    if (any) find_first_and_last(p, begin, last, block);
    seen.found |= crow.check(p, begin);
    if (any) find_rows(p, begin, block);
  }
  if (any) visit_all(p, begin, mine, block, seen);
  hand_over(p, seen, block);
  if (threadIdx.x == 0) add_up(p, block.sums);
}
