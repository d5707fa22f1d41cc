// One pass over a pattern's indices: checks them and their order, counts row segments and runs; on
// request stores row ids, nonzeros per tile, and where each row of each tile begins. Limit: the
// instructions of the pass; for a small pattern, the memory operations that depend on each other.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"
#include "sddmm/csr_rows.cuh"
#include "sddmm/warp.cuh"

using namespace sddmm;
using gemm_core::i64;
using gemm_core::u32;
using u64 = unsigned long long;

// What analysis.py chooses, by macro.
struct Config {
  // The type of the caller's indices: int or i64.
  using IndexType = SDDMM_INDEX;
  // Whether the pattern is CSR; else it is COO.
  static constexpr bool CSR = SDDMM_CSR;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of nonzeros, and of entries of crow, that a block reads.
  static constexpr int ITEMS_PER_BLOCK = SDDMM_ITEMS_PER_BLOCK;
  // The number of bytes of dynamic shared memory that a block has.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
  // The number of 64-bit words that the host keeps for Results, and for State.
  static constexpr int RESULT_WORDS = SDDMM_RESULT_WORDS, STATE_WORDS = SDDMM_STATE_WORDS;
};

using IndexType = Config::IndexType;
constexpr bool CSR = Config::CSR;
constexpr int THREADS = Config::THREADS, WARPS = THREADS / 32;
constexpr int ITEMS_PER_BLOCK = Config::ITEMS_PER_BLOCK;
constexpr int ITEMS_PER_THREAD = ITEMS_PER_BLOCK / THREADS;
static_assert(ITEMS_PER_BLOCK % THREADS == 0, "every thread has the same number of nonzeros");
// The number of tiles whose nonzeros a block counts in shared memory before it adds them to global
// memory.
constexpr int LOCAL_TILES = 512;

// Flags of a pattern, in the order of Results::flags.
constexpr u32 INVALID = 1, ROWS_FALL = 2, COLUMNS_FALL = 4, COLUMNS_REPEAT = 8;
constexpr int FLAGS = 4;

// What every analysis counts. A row segment is the part of a row within a tile's columns; those
// that are not empty are counted, where the nonzeros come in order. A run is a maximal sequence of
// nonzeros of a row, in the order of the pattern, each in the column after its predecessor's.
enum Count { SEGMENTS, RUNS, COUNTS };

// The results for the whole pattern.
struct Results {
  u64 counts[COUNTS], flags[FLAGS];
};
// What the blocks accumulate. An entry of `done` holds two sums, so that one atomic adds to both:
// the finished blocks from bit DONE_BITS on, and a count of theirs below.
struct State {
  u64 done[COUNTS];
};
constexpr int DONE_BITS = 40;
static_assert(sizeof(Results) == 8 * Config::RESULT_WORDS, "analysis.py reads these words");
static_assert(sizeof(State) == 8 * Config::STATE_WORDS, "analysis.py allocates these words");

// Divides by a constant of the launch with a multiplication (analysis.py: reciprocal).
struct Divisor {
  u32 factor;
  int shift;

  __device__ __forceinline__ int operator()(int x) const {
    return static_cast<int>(static_cast<u64>(x) * factor >> shift);
  }
};

struct Arguments {
  // CSR: crow_indices, (m + 1,); COO: row_indices, (nnz,). Then col_indices, (nnz,).
  const IndexType *major_indices, *col_indices;
  // Outputs, each (nnz,) or null: the row of each nonzero, and its column in 32 bits.
  int *row_ids, *cols_int32;
  // Output or null: the number of nonzeros of each tile, tile row by tile row. Zero before the
  // launch.
  int* tile_nnz;
  // Output (offset_count,) or null: entry row * (tiles_across + 1) + x is the first nonzero of
  // `row` that is not before tile column x, so the next entry is where the row segment ends.
  int* tile_row_offsets;
  // Zero before the launch; the launch sets next_state to zero for its successor.
  State *state, *next_state;
  // Pinned host memory. Every word starts at 0 except the counts, which start at -1 and are written
  // last; the host polls them.
  Results* results;
  i64 nnz;
  int m, n, tiles_across, offset_count;
  // Divisions by the height and the width of a tile.
  Divisor tile_row, tile_column;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// The statistics of a warp's nonzeros.
struct WarpStats {
  u32 flags, counts[COUNTS];
};

// The shared memory of a block.
struct Shared {
  // CSR only: the row of each nonzero, counted from first_row, padded.
  int rows[ITEMS_PER_BLOCK + ITEMS_PER_BLOCK / ITEMS_PER_THREAD];
  int warp_max[WARPS];
  // CSR only: the rows of the nonzero before the block's, of its first and of its last.
  int previous_row, first_row, last_row;
  // The number of the block's nonzeros in each of the tiles from first_tile() on.
  int tile_nnz[LOCAL_TILES];
  WarpStats stats[WARPS];
};
static_assert(sizeof(Shared) <= Config::SHARED_BYTES, "the launch allocates SHARED_BYTES");

// CSR: finds the rows of nonzeros begin - 1, begin and last, one by each of the first three warps.
__device__ __forceinline__ void find_boundary_rows(const Arguments& p, i64 begin, i64 last,
                                                   Shared& shared) {
  const int warp = threadIdx.x / 32;
  if (warp < 3) {
    const int row =
        find_row(p.major_indices, 0, p.m - 1, warp == 0 ? begin : warp == 1 ? last : begin - 1);
    if (threadIdx.x % 32 == 0)
      (warp == 0 ? shared.first_row : warp == 1 ? shared.last_row : shared.previous_row) = row;
  }
  for (int i = threadIdx.x; i < ITEMS_PER_BLOCK; i += THREADS)
    shared.rows[padded<ITEMS_PER_THREAD>(i)] = 0;
  __syncthreads();
}

// CSR: expands crow to the row of each of the block's nonzeros. Each row writes its number at its
// first nonzero, then a scan spreads the numbers. Of several rows that begin at one nonzero all but
// the last are empty, so the maximum is the right one.
__device__ __forceinline__ void expand_rows(const Arguments& p, i64 begin, Shared& shared) {
  for (int first = shared.first_row + 1 + threadIdx.x; first <= shared.last_row;
       first += ITEMS_PER_THREAD * THREADS) {
    u64 item[ITEMS_PER_THREAD];  // unsigned, as an entry that is not valid may be any number
#pragma unroll
    for (int j = 0; j < ITEMS_PER_THREAD; ++j) {
      const int row = first + j * THREADS;
      const bool exists = row <= shared.last_row;
      item[j] = exists ? static_cast<u64>(p.major_indices[row]) - begin : ITEMS_PER_BLOCK;
    }
#pragma unroll
    for (int j = 0; j < ITEMS_PER_THREAD; ++j) {
      if (item[j] >= ITEMS_PER_BLOCK) continue;
      int* const entry = shared.rows + padded<ITEMS_PER_THREAD>(static_cast<int>(item[j]));
      atomicMax(entry, first + j * THREADS - shared.first_row);
    }
  }
  __syncthreads();
  scan_max<ITEMS_PER_THREAD>(shared.rows, shared.warp_max);
}

// CSR: returns INVALID unless crow starts at 0, never falls and ends at nnz, as far as the block's
// entries tell, from entry `begin` on.
__device__ __forceinline__ u32 check_crow(const Arguments& p, i64 begin) {
  bool valid = true;
#pragma unroll
  for (int j = 0; j < ITEMS_PER_THREAD; ++j) {
    const i64 i = begin + j * THREADS + threadIdx.x;
    if (i > p.m) continue;
    const IndexType pointer = p.major_indices[i], next = i < p.m ? p.major_indices[i + 1] : p.nnz;
    valid &= pointer <= next && (i > 0 || pointer == 0) && (i < p.m || pointer == p.nnz);
  }
  return valid ? 0 : INVALID;
}

// The statistics of a thread's nonzeros. Both counts are in one word, so that one register holds
// and one reduction adds both: runs are counted from FIRST_RUN on.
constexpr u32 FIRST_RUN = 1 << 16;
static_assert(ITEMS_PER_BLOCK < FIRST_RUN, "the counts of a block stay apart");
struct ThreadStats {
  u32 flags = 0, segments_and_runs = 0;
};

// A thread's nonzeros and the predecessor of each: item j is nonzero j * THREADS + threadIdx.x of
// the block. Predecessors are kept in 32 bits: another thread has them whole, and finds those that
// are not valid.
struct ThreadItems {
  IndexType col[ITEMS_PER_THREAD], row[ITEMS_PER_THREAD];  // rows of COO only
  int previous_col[ITEMS_PER_THREAD], previous_row[ITEMS_PER_THREAD];

  // Loads the indices; all loads are in flight together.
  __device__ __forceinline__ ThreadItems(const Arguments& p, i64 begin) {
    const IndexType *const cols = p.col_indices + begin, *const rows = p.major_indices + begin;
    const i64 left = p.nnz - begin;
#pragma unroll
    for (int j = 0; j < ITEMS_PER_THREAD; ++j) {
      const int i = j * THREADS + threadIdx.x;
      const bool exists = i < left, has_previous = i <= left && (i > 0 || begin > 0);
      col[j] = exists ? cols[i] : 0;
      previous_col[j] = has_previous ? static_cast<int>(cols[i - 1]) : 0;
      row[j] = CSR || !exists ? 0 : rows[i];
      previous_row[j] = CSR || !has_previous ? 0 : static_cast<int>(rows[i - 1]);
    }
  }
  __device__ __forceinline__ IndexType row_of(int j, const Shared& shared) const {
    return CSR ? shared.first_row +
                     shared.rows[padded<ITEMS_PER_THREAD>(j * THREADS + threadIdx.x)]
               : row[j];
  }
  __device__ __forceinline__ int previous_row_of(int j, const Shared& shared) const {
    const int i = j * THREADS + threadIdx.x;
    if (!CSR) return previous_row[j];
    return i > 0 ? shared.first_row + shared.rows[padded<ITEMS_PER_THREAD>(i - 1)]
                 : shared.previous_row;
  }
};

__device__ __forceinline__ bool in_range(IndexType x, int size) {
  return static_cast<u64>(x) < static_cast<u64>(size);
}

// Whether y is x + 1. Unsigned, as an index that is not valid may be the largest of its type.
__device__ __forceinline__ bool is_next(int x, int y) {
  return static_cast<u32>(x) + 1 == static_cast<u32>(y);
}

// The last entry of tile_row_offsets that is not past a nonzero; any number for one outside the
// matrix.
__device__ __forceinline__ int offset_index(const Arguments& p, int row, int col) {
  return static_cast<int>(static_cast<u32>(row) * static_cast<u32>(p.tiles_across + 1) +
                          static_cast<u32>(p.tile_column(col)));
}

// The first tile of the tile row that holds the block's first nonzero.
__device__ __forceinline__ int first_tile(const Arguments& p, i64 begin, const Shared& shared) {
  const IndexType row = CSR ? shared.first_row : begin < p.nnz ? p.major_indices[begin] : 0;
  return in_range(row, p.m) ? p.tile_row(static_cast<int>(row)) * p.tiles_across : 0;
}

// Adds the block's nonzeros to the counts of their tiles; tile -1 counts nowhere. Neighbouring rows
// add to the same few tiles, so the first LOCAL_TILES are summed in shared memory before they reach
// global memory.
__device__ __forceinline__ void count_tiles(const Arguments& p,
                                            const int (&tiles)[ITEMS_PER_THREAD], int first,
                                            int* local_nnz) {
  for (int i = threadIdx.x; i < LOCAL_TILES; i += THREADS) local_nnz[i] = 0;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < ITEMS_PER_THREAD; ++j) {
    const int added = run_length(tiles[j]);
    if (added == 0) continue;
    if (tiles[j] >= first && tiles[j] - first < LOCAL_TILES)
      atomicAdd(local_nnz + tiles[j] - first, added);
    else
      atomicAdd(p.tile_nnz + tiles[j], added);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < LOCAL_TILES; i += THREADS) {
    const int added = local_nnz[i];
    if (added > 0) atomicAdd(p.tile_nnz + first + i, added);
  }
}

// Checks, counts and stores the block's nonzeros. The thread one past the last nonzero of the
// pattern fills the rest of tile_row_offsets.
__device__ __forceinline__ void process_items(const Arguments& p, i64 begin,
                                              const ThreadItems& items, Shared& shared,
                                              ThreadStats& stats) {
  const i64 nnz_left = p.nnz - begin;
  const int left = static_cast<int>(nnz_left < ITEMS_PER_BLOCK ? nnz_left : ITEMS_PER_BLOCK);
  int tiles[ITEMS_PER_THREAD];
#pragma unroll
  for (int j = 0; j < ITEMS_PER_THREAD; ++j) {
    const int i = j * THREADS + threadIdx.x;
    const bool exists = i < left, past_end = i == left, has_previous = i > 0 || begin > 0;
    const bool valid = in_range(items.col[j], p.n) && in_range(items.row_of(j, shared), p.m);
    const int row = static_cast<int>(items.row_of(j, shared));
    const int previous_row = items.previous_row_of(j, shared);
    const int col = static_cast<int>(items.col[j]), previous_col = items.previous_col[j];
    const int offset = offset_index(p, row, col);
    const int previous_offset = has_previous ? offset_index(p, previous_row, previous_col) : -1;
    if (exists) {
      if (!valid) stats.flags |= INVALID;
      const bool same_row = has_previous && previous_row == row;
      if (has_previous && previous_row > row) stats.flags |= ROWS_FALL;
      if (same_row && previous_col >= col)
        stats.flags |= previous_col > col ? COLUMNS_FALL : COLUMNS_REPEAT;
      stats.segments_and_runs += offset != previous_offset;
      if (!(same_row && is_next(previous_col, col))) stats.segments_and_runs += FIRST_RUN;
      if (p.row_ids != nullptr) p.row_ids[begin + i] = row;
      if (p.cols_int32 != nullptr) p.cols_int32[begin + i] = col;
    }
    tiles[j] = exists && valid && p.tile_nnz != nullptr
                   ? p.tile_row(row) * p.tiles_across + p.tile_column(col)
                   : -1;
    if (p.tile_row_offsets == nullptr) continue;
    const int after = previous_offset > -1 ? previous_offset : -1;
    const int last = exists && valid ? offset : past_end ? p.offset_count - 1 : -1;
    fill(p.tile_row_offsets, after, last, static_cast<int>(begin) + i);
  }
  if (p.tile_nnz == nullptr) return;
  count_tiles(p, tiles, first_tile(p, begin, shared), shared.tile_nnz);
}

// Reduces the statistics of each warp to one entry in shared memory.
__device__ __forceinline__ void reduce_by_warp(const ThreadStats& stats, Shared& shared) {
  u32 flags = stats.flags;
  for (int distance = 16; distance > 0; distance /= 2)
    flags |= __shfl_xor_sync(FULL_MASK, flags, distance);
  const u32 counts = warp_sum(stats.segments_and_runs);
  if (threadIdx.x % 32 == 0)
    shared.stats[threadIdx.x / 32] = {flags, {counts % FIRST_RUN, counts / FIRST_RUN}};
  __syncthreads();
}

// Adds the block's statistics to the state; the last block to finish a count writes it. One thread
// does it, with as few dependent memory operations as possible: they are most of the time for a
// small pattern.
__device__ __forceinline__ void publish(const Arguments& p, const WarpStats (&stats)[WARPS]) {
  u32 flags = 0;
  u64 done[COUNTS];
  for (u64& sum : done) sum = u64{1} << DONE_BITS;
  for (const WarpStats& warp : stats) {
    flags |= warp.flags;
    for (int i = 0; i < COUNTS; ++i) done[i] += warp.counts[i];
  }
  for (int flag = 0; flag < FLAGS; ++flag)
    if (flags >> flag & 1) p.results->flags[flag] = 1;
  if (blockIdx.x == 0) *p.next_state = State{};
  // The writes above must be visible, to the host or to the next launch, before `done` counts this
  // block.
  if (flags != 0) __threadfence_system();
  if (blockIdx.x == 0) __threadfence();
  for (int i = 0; i < COUNTS; ++i) done[i] += atomicAdd(p.state->done + i, done[i]);
  for (int i = 0; i < COUNTS; ++i)
    if (done[i] >> DONE_BITS == gridDim.x)
      p.results->counts[i] = done[i] & ((u64{1} << DONE_BITS) - 1);
}

// Each block loads ITEMS_PER_BLOCK nonzeros and checks as many entries of crow, finds the nonzeros'
// rows, processes them, then reduces and publishes what it counted.
extern "C" __global__ void __launch_bounds__(THREADS, CSR || sizeof(IndexType) == 4 ? 4 : 3)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  Shared& block = *reinterpret_cast<Shared*>(shared);
  const i64 begin = static_cast<i64>(blockIdx.x) * ITEMS_PER_BLOCK;
  const i64 last = (begin + ITEMS_PER_BLOCK < p.nnz ? begin + ITEMS_PER_BLOCK : p.nnz) - 1;
  const ThreadItems items(p, begin);
  const bool has_items = begin <= p.nnz && p.m > 0;
  ThreadStats stats;
  if constexpr (CSR) {
    if (begin <= p.m) stats.flags |= check_crow(p, begin);
    if (has_items) {
      find_boundary_rows(p, begin, last, block);
      expand_rows(p, begin, block);
    }
  }
  if (has_items) process_items(p, begin, items, block, stats);
  reduce_by_warp(stats, block);
  if (threadIdx.x == 0) publish(p, block.stats);
}
