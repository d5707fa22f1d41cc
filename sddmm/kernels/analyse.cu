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

// The same by a thread.
__device__ __forceinline__ int row_of(const IndexType* crow, int low, int high, i64 i) {
  while (low < high) {
    const int middle = low + (high - low + 1) / 2;
    if (crow[middle] <= i) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
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

// Nonzero i, in one of the rows low .. high; by all lanes of a warp.
__device__ __forceinline__ void visit(const Arguments& p, i64 i, int low, int high, Seen& seen) {
  int tile = -1;
  if (i < p.nnz) {
    const i64 col = p.cols[i];
    i64 row;
    bool continues;  // the row of the nonzero before
    if constexpr (CSR) {
      row = p.m > 0 ? row_of(p.major, low, high, i) : -1;
      continues = row >= 0 && p.major[row] < i;
    } else {
      row = p.major[i];
      continues = i > 0 && p.major[i - 1] == row;
      if (i > 0 && p.major[i - 1] > row) seen.found |= ROWS_FALL;
    }
    if (i > 0 && continues && p.cols[i - 1] > col) seen.found |= COLUMNS_FALL;
    const bool inside = row >= 0 && row < p.m && col >= 0 && col < p.n;
    if (!inside) seen.found |= INVALID;
    if (p.rows != nullptr) p.rows[i] = static_cast<int>(row);
    if (p.cols_32 != nullptr) p.cols_32[i] = static_cast<int>(col);
    if (inside && p.counts != nullptr) {
      const int across = (p.n + p.block_n - 1) / p.block_n;
      tile = static_cast<int>(row) / p.block_m * across + static_cast<int>(col) / p.block_n;
    }
  }
  if (p.counts != nullptr) {
    // One addition for all lanes of a tile: they are neighbours, and tiles may be very full.
    const u32 alike = __match_any_sync(ALL, tile);
    if (tile >= 0 && threadIdx.x % 32 == __ffs(alike) - 1) {
      const int more = __popc(alike);
      seen.count(atomicAdd(p.counts + tile, more), more, p.least);
    }
  }
}

template <class T>
__device__ __forceinline__ T of_warp(T mine) {
  for (int apart = 16; apart > 0; apart /= 2) mine += __shfl_xor_sync(ALL, mine, apart);
  return mine;
}

// Adds up what the block has seen; the last block of all hands the results over.
__device__ __forceinline__ void add_up(const Arguments& p, const Seen& seen, u64 (*sums)[RESULTS]) {
  u32 found = seen.found;
  for (int apart = 16; apart > 0; apart /= 2) found |= __shfl_xor_sync(ALL, found, apart);
  const u64 filled = of_warp(seen.filled), worth = of_warp(seen.worth), held = of_warp(seen.held);
  const int warp = threadIdx.x / 32;
  __syncthreads();  // what else lay there has been read
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

// A block takes THREADS * EACH entries of crow and as many nonzeros.
extern "C" __global__ void __launch_bounds__(THREADS) sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  int* const rows = reinterpret_cast<int*>(shared);
  const i64 begin = static_cast<i64>(blockIdx.x) * THREADS * EACH;
  const i64 last = begin + THREADS * EACH < p.nnz ? begin + THREADS * EACH - 1 : p.nnz - 1;
  if (CSR && threadIdx.x < 64 && begin < p.nnz && p.m > 0) {
    const int row = row_of_warp(p.major, 0, p.m - 1, threadIdx.x < 32 ? begin : last);
    if (threadIdx.x % 32 == 0) rows[threadIdx.x / 32] = row;
  }
  __syncthreads();
  const int low = CSR ? rows[0] : 0, high = CSR ? rows[1] : 0;
  Seen seen;
  for (int j = 0; j < EACH; ++j) {
    const i64 i = begin + j * THREADS + threadIdx.x;
    if (CSR) seen.found |= check_crow(p, i);
    visit(p, i, low, high, seen);
  }
  add_up(p, seen, reinterpret_cast<u64(*)[RESULTS]>(shared));
}
