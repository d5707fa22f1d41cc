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
  // The number of threads of a block, and of blocks that the registers of a multiprocessor hold.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
  // The number of nonzeros that a warp reads at once, and the most that a block reads in all.
  static constexpr int WARP_ITEMS = SDDMM_WARP_ITEMS, MAX_BLOCK_ITEMS = SDDMM_MAX_BLOCK_ITEMS;
  // The number of bytes of dynamic shared memory that a block has.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
  // The number of 64-bit words that the host keeps for Results, and for State.
  static constexpr int RESULT_WORDS = SDDMM_RESULT_WORDS, STATE_WORDS = SDDMM_STATE_WORDS;
};

using IndexType = Config::IndexType;
constexpr bool CSR = Config::CSR;
constexpr int THREADS = Config::THREADS, WARPS = THREADS / 32;
constexpr int WARP_ITEMS = Config::WARP_ITEMS;
// A lane has QUAD consecutive nonzeros of each step of a warp, and so many steps at once.
constexpr int QUAD = 4, STEP_ITEMS = 32 * QUAD, STEPS = WARP_ITEMS / STEP_ITEMS;
static_assert(WARP_ITEMS % STEP_ITEMS == 0, "steps are whole");
// The number of tiles whose nonzeros a block counts in shared memory before it adds them to global
// memory.
constexpr int LOCAL_TILES = 1024;

// Flags of a pattern, in the order of Results::flags. UNORDERED: a nonzero of COO is before its
// predecessor by column, and by row within a column; CSR, whose rows never fall, is not asked.
constexpr u32 INVALID = 1, ROWS_FALL = 2, COLUMNS_FALL = 4, COLUMNS_REPEAT = 8, UNORDERED = 16;
constexpr int FLAGS = 5;

// What every analysis counts. A row segment is the part of a row within a tile's columns; those
// that are not empty are counted, where the nonzeros come in order. A run is a maximal sequence of
// nonzeros of a row, in the order of the pattern, each in the column after its predecessor's.
enum Count { SEGMENTS, RUNS, COUNTS };

// The results for the whole pattern.
struct Results {
  u64 counts[COUNTS], flags[FLAGS];
};
// What the blocks accumulate. An entry of `done` holds two sums, so that one atomic adds to both:
// the finished blocks from bit DONE_BITS on, and a count of theirs below. is_invalid: for kernels that
// the host launches before it knows, as then some of tile_row_offsets are not written.
struct State {
  u64 done[COUNTS], is_invalid;
};
constexpr int DONE_BITS = 40;
static_assert(sizeof(Results) == 8 * Config::RESULT_WORDS, "analysis.py reads these words");
static_assert(sizeof(State) == 8 * Config::STATE_WORDS, "analysis.py allocates these words");

// Divides by a constant of the launch with a multiplication (analysis.py: reciprocal), whose high word
// has the quotient of a number below 2^31.
struct Divisor {
  u32 factor;
  int shift;

  __device__ __forceinline__ int operator()(int x) const {
    const u64 product = static_cast<u64>(2 * static_cast<u32>(x)) * factor;
    return static_cast<int>(static_cast<u32>(product >> 32) >> shift);
  }
};

struct Arguments {
  // CSR: crow_indices, (m + 1,); COO: row_indices, (nnz,). Then col_indices, (nnz,).
  const IndexType *major_indices, *col_indices;
  // Outputs, each (nnz,) from a multiple of 16 bytes on, or null: the row of each nonzero, and its
  // column in 32 bits.
  int *row_ids, *cols_int32;
  // Output or null: the number of nonzeros of each tile, tile row by tile row. Zero before the
  // launch.
  int* tile_nnz;
  // Output (offset_count,) or null: entry row * (tiles_across + 1) + x is the first nonzero of
  // `row` that is not before tile column x, so the next entry is where the row segment ends. Where
  // rows or columns fall these are other numbers, but still of 0 .. nnz: from entry -1 to the last one
  // every step up writes all entries that it passes.
  int* tile_row_offsets;
  // Zero before the launch; the launch sets next_state to zero for its successor.
  State *state, *next_state;
  // Pinned host memory. Every word starts at 0 except the counts, which start at -1 and are written
  // last; the host polls them.
  Results* results;
  i64 nnz;
  int share;  // the number of nonzeros, and of entries of crow, that a warp reads; of WARP_ITEMS
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
  // For each warp: see find_row_starts, of CSR; of a step whose rows are known, see write_offsets.
  alignas(16) int row_starts[WARPS][WARP_ITEMS];
  // The first of the tiles whose nonzeros the block counts, and how many it has of each.
  int first_tile, tile_nnz[LOCAL_TILES];
  WarpStats stats[WARPS];
};
static_assert(sizeof(Shared) <= Config::SHARED_BYTES, "the launch allocates SHARED_BYTES");

__device__ __forceinline__ bool in_range(IndexType x, int size) {
  return static_cast<u64>(x) < static_cast<u64>(size);
}

// The statistics of a thread's nonzeros. Both counts are in one word, so that one register holds
// and one reduction adds both: runs are counted from FIRST_RUN on.
constexpr u32 FIRST_RUN = 1 << 16;
static_assert(Config::MAX_BLOCK_ITEMS < FIRST_RUN, "the counts of a block stay apart");
struct ThreadStats {
  u32 flags = 0, segments_and_runs = 0;
  // The largest column, as an unsigned number; and the least step from a column to the next one of its
  // row, of those that are less than 1.
  u32 largest_col = 0;
  int least_step = 1;

  // Counts a column that follows on another of its row by `step` columns, or on none if `step` is
  // NEW_ROW.
  static constexpr int NEW_ROW = 2;
  __device__ __forceinline__ void add_step(int step) {
    if (step != 1) segments_and_runs += FIRST_RUN;
    least_step = step < least_step ? step : least_step;
  }
  __device__ __forceinline__ void check_col(IndexType col, int n) {
    if constexpr (sizeof(IndexType) == 4)
      largest_col = static_cast<u32>(col) > largest_col ? static_cast<u32>(col) : largest_col;
    else if (!in_range(col, n))
      flags |= INVALID;
  }
  __device__ __forceinline__ u32 all_flags(const Arguments& p) const {
    const bool is_outside = p.nnz > 0 && largest_col >= static_cast<u32>(p.n);
    return flags | (is_outside ? INVALID : 0) | (least_step < 0 ? COLUMNS_FALL : 0) |
           (least_step == 0 ? COLUMNS_REPEAT : 0);
  }
};

// Loads QUAD elements, of which `left` exist, by 16 bytes where they can be; the others are 0.
template <class T>
__device__ __forceinline__ void load_quad(const T* from, i64 left, bool is_aligned, T (&to)[QUAD]) {
  struct alignas(16) Vector {
    T x[16 / sizeof(T)];
  };
  if (is_aligned && left >= QUAD) {
    constexpr int EACH = sizeof(Vector) / sizeof(T);
#pragma unroll
    for (int q = 0; q < QUAD; q += EACH) {
      const Vector loaded = *reinterpret_cast<const Vector*>(from + q);
#pragma unroll
      for (int i = 0; i < EACH; ++i) to[q + i] = loaded.x[i];
    }
  } else {
#pragma unroll
    for (int q = 0; q < QUAD; ++q) to[q] = q < left ? from[q] : 0;
  }
}

// Stores QUAD elements, of which `left` exist, at a multiple of 16 bytes.
__device__ __forceinline__ void store_quad(int* to, int left, const int (&x)[QUAD]) {
  if (left >= QUAD) {
    *reinterpret_cast<int4*>(to) = {x[0], x[1], x[2], x[3]};
  } else {
#pragma unroll
    for (int q = 0; q < QUAD; ++q)
      if (q < left) to[q] = x[q];
  }
}

// A lane's nonzeros: number q of step s is nonzero STEP_ITEMS s + QUAD lane + q from the warp's first on.
struct Items {
  IndexType col[STEPS][QUAD], row[STEPS][QUAD];  // rows of COO only

  // All loads are in flight together.
  __device__ __forceinline__ void load(const Arguments& p, i64 begin) {
    const auto is_aligned = [](const IndexType* x) {
      return reinterpret_cast<u64>(x) % 16 == 0;
    };
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const i64 first = begin + STEP_ITEMS * s + QUAD * (threadIdx.x % 32);
      load_quad(p.col_indices + first, p.nnz - first, is_aligned(p.col_indices), col[s]);
      if (!CSR)
        load_quad(p.major_indices + first, p.nnz - first, is_aligned(p.major_indices), row[s]);
    }
  }
};

// What a warp knows of the nonzero before its next ones: its row, and in lane 0 its column and its
// entry of tile_row_offsets. -1 before the first nonzero. They are kept in 32 bits: another thread has
// the indices whole, and finds those that are not valid.
struct Predecessor {
  int row = -1, col = -1, offset = -1;
};

// x of the lane before this one. Lane 0 takes `carried`, which becomes x of the last lane.
__device__ __forceinline__ int of_lane_before(int x, int& carried) {
  const int lane = threadIdx.x % 32, rotated = __shfl_sync(FULL_MASK, x, (lane + 31) % 32);
  const int before = lane == 0 ? carried : rotated;
  carried = rotated;
  return before;
}

// The last entry of tile_row_offsets that is not past a nonzero; any number for one outside the
// matrix.
__device__ __forceinline__ int offset_index(const Arguments& p, int row, int col) {
  return static_cast<int>(static_cast<u32>(row) * static_cast<u32>(p.tiles_across + 1) +
                          static_cast<u32>(p.tile_column(col)));
}

// The nonzero before nonzero `begin`.
__device__ __forceinline__ Predecessor find_predecessor(const Arguments& p, i64 begin) {
  Predecessor before;
  if (begin == 0 || begin > p.nnz || p.m == 0) return before;
  before.row = CSR ? find_row(p.major_indices, 0, p.m - 1, begin - 1)
                   : static_cast<int>(p.major_indices[begin - 1]);
  before.col = static_cast<int>(p.col_indices[begin - 1]);
  before.offset = offset_index(p, before.row, before.col);
  return before;
}

// Adds nonzeros of a tile to its count; of tile -1 nowhere. Neighbouring rows add to the same few
// tiles, so the first LOCAL_TILES are summed in shared memory before they reach global memory.
__device__ __forceinline__ void add_to_tile(const Arguments& p, int tile, int added,
                                            Shared& shared) {
  if (added == 0 || tile < 0) return;
  const int local = tile - shared.first_tile;
  if (local >= 0 && local < LOCAL_TILES)
    atomicAdd(shared.tile_nnz + local, added);
  else
    atomicAdd(p.tile_nnz + tile, added);
}

// Adds a warp's nonzeros, QUAD in each lane, to the counts of their tiles. Lanes side by side whose
// nonzeros are all of one tile add them up first.
__device__ __forceinline__ void count_tiles(const Arguments& p, const int (&tiles)[QUAD],
                                            Shared& shared) {
  bool is_one_tile = true;
#pragma unroll
  for (int q = 1; q < QUAD; ++q) is_one_tile &= tiles[q] == tiles[0];
  add_to_tile(p, tiles[0], QUAD * run_length(is_one_tile ? tiles[0] : -1), shared);
  if (is_one_tile) return;
  int count = 1;
#pragma unroll
  for (int q = 1; q < QUAD; ++q, ++count) {
    if (tiles[q] == tiles[q - 1]) continue;
    add_to_tile(p, tiles[q - 1], count, shared);
    count = 0;
  }
  add_to_tile(p, tiles[QUAD - 1], count, shared);
}

// The rows of a step's nonzeros, and whether each is that of the nonzero before. COO: checks them too,
// and tells whether each is less than the one before.
struct StepRows {
  int row[QUAD];
  bool is_same[QUAD], falls[QUAD];

  __device__ __forceinline__ StepRows(const int* row_starts, Predecessor& before) {
    const int4 of_lane = *reinterpret_cast<const int4*>(row_starts + QUAD * (threadIdx.x % 32));
    const int starts[QUAD] = {of_lane.x, of_lane.y, of_lane.z, of_lane.w};
    find_rows(starts, before.row, row);
#pragma unroll
    for (int q = 0; q < QUAD; ++q) is_same[q] = starts[q] < 0, falls[q] = false;
  }
  __device__ __forceinline__ StepRows(const IndexType (&rows)[QUAD], int left, int m,
                                      Predecessor& before, ThreadStats& stats) {
#pragma unroll
    for (int q = 0; q < QUAD; ++q) row[q] = static_cast<int>(rows[q]);
    int previous = of_lane_before(row[QUAD - 1], before.row);
#pragma unroll
    for (int q = 0; q < QUAD; previous = row[q++]) {
      is_same[q] = previous == row[q];
      falls[q] = q < left && previous > row[q];
      if (falls[q]) stats.flags |= ROWS_FALL;
      if (q < left && !in_range(rows[q], m)) stats.flags |= INVALID;
    }
  }
};

// Writes where rows of tiles begin among a step's nonzeros. offsets: the lane's, NO_OFFSET for one that
// fills nothing; they go by `memory`, STEP_ITEMS words of the warp, so that lanes side by side write
// entries side by side. before: that of the nonzero before the step's first, whose number is `first`.
constexpr int NO_OFFSET = 0x7fffffff;
__device__ __forceinline__ void write_offsets(int* tile_row_offsets, const int (&offsets)[QUAD],
                                              int before, int first, int* memory) {
  const int lane = threadIdx.x % 32;
  before = __shfl_sync(FULL_MASK, before, 0);
  __syncwarp();  // all lanes have read what is in memory
  store_quad(memory + QUAD * lane, QUAD, offsets);
  __syncwarp();
#pragma unroll
  for (int j = 0; j < QUAD; ++j) {
    const int i = 32 * j + lane, own = memory[i], previous = i > 0 ? memory[i - 1] : before;
    fill(tile_row_offsets, previous > -1 ? previous : -1, own == NO_OFFSET ? -1 : own, first + i);
  }
}

// Counts the tiles of a step's nonzeros, and writes where rows of tiles begin, as far as they are asked
// for. first: the number of the step's first nonzero; left: of the pattern's from the lane's on.
__device__ __forceinline__ void process_tiles(const Arguments& p, const IndexType (&col)[QUAD],
                                              const int (&row)[QUAD], const int (&offsets)[QUAD],
                                              int offset_before, int first, i64 left, int* memory,
                                              Shared& shared) {
  int tiles[QUAD], ends[QUAD];
#pragma unroll
  for (int q = 0; q < QUAD; ++q) {
    const bool in_matrix = q < left && in_range(col[q], p.n) && in_range(row[q], p.m);
    // Unsigned, as the product may not exist for an index that is not valid.
    const u32 tile =
        static_cast<u32>(p.tile_row(row[q])) * static_cast<u32>(p.tiles_across) +
        static_cast<u32>(p.tile_column(static_cast<int>(col[q])));
    tiles[q] = in_matrix ? static_cast<int>(tile) : -1;
    ends[q] = in_matrix ? offsets[q] : q == left ? p.offset_count - 1 : NO_OFFSET;
  }
  if (p.tile_nnz != nullptr) count_tiles(p, tiles, shared);
  if (p.tile_row_offsets != nullptr)
    write_offsets(p.tile_row_offsets, ends, offset_before, first, memory);
}

// Checks, counts and stores a warp's nonzeros from `begin` on. The lane one past the last nonzero of
// the pattern fills the rest of tile_row_offsets.
__device__ __forceinline__ void process_items(const Arguments& p, i64 begin, const Items& items,
                                              Predecessor& before, Shared& shared,
                                              ThreadStats& stats) {
  int* const row_starts = shared.row_starts[threadIdx.x / 32];
  if constexpr (CSR)
    find_row_starts<WARP_ITEMS / 32>(p.major_indices, p.m, begin, before.row, row_starts);
#pragma unroll
  for (int s = 0; s < STEPS; ++s) {
    const i64 first = begin + STEP_ITEMS * s + QUAD * (threadIdx.x % 32), nnz_left = p.nnz - first;
    const int left = nnz_left < QUAD ? static_cast<int>(nnz_left) : QUAD;
    const StepRows rows = [&] {
      if constexpr (CSR)
        return StepRows(row_starts + STEP_ITEMS * s, before);
      else
        return StepRows(items.row[s], left, p.m, before, stats);
    }();
    int col[QUAD], offset[QUAD];
#pragma unroll
    for (int q = 0; q < QUAD; ++q) {
      col[q] = static_cast<int>(items.col[s][q]);
      offset[q] = offset_index(p, rows.row[q], col[q]);
      if (q < left) stats.check_col(items.col[s][q], p.n);
    }
    int previous_col = of_lane_before(col[QUAD - 1], before.col);
    const int offset_before = of_lane_before(offset[QUAD - 1], before.offset);
    int previous_offset = offset_before;
#pragma unroll
    for (int q = 0; q < QUAD; ++q) {
      const bool exists = q < left;
      // Unsigned, as the difference of indices that are not valid may not exist.
      const u32 step = static_cast<u32>(col[q]) - static_cast<u32>(previous_col);
      stats.add_step(!exists ? 1 : rows.is_same[q] ? static_cast<int>(step) : ThreadStats::NEW_ROW);
      stats.segments_and_runs += exists && offset[q] != previous_offset;
      if (!CSR && exists && (col[q] < previous_col || (step == 0 && rows.falls[q])))
        stats.flags |= UNORDERED;
      previous_col = col[q], previous_offset = offset[q];
    }
    if (p.row_ids != nullptr) store_quad(p.row_ids + first, left, rows.row);
    if (p.cols_int32 != nullptr) store_quad(p.cols_int32 + first, left, col);
    if (p.tile_nnz != nullptr || p.tile_row_offsets != nullptr)
      process_tiles(p, items.col[s], rows.row, offset, offset_before,
                    static_cast<int>(begin) + STEP_ITEMS * s, nnz_left, row_starts + STEP_ITEMS * s,
                    shared);
  }
}

// Begins to count tiles, from the first one of the tile row of the block's first nonzero on.
__device__ __forceinline__ void start_count(const Arguments& p, const Predecessor& before,
                                            Shared& shared) {
  for (int i = threadIdx.x; i < LOCAL_TILES; i += THREADS) shared.tile_nnz[i] = 0;
  if (threadIdx.x == 0)
    shared.first_tile = in_range(before.row, p.m) ? p.tile_row(before.row) * p.tiles_across : 0;
  __syncthreads();
}

// Adds what the block has counted to global memory.
__device__ __forceinline__ void finish_count(const Arguments& p, const Shared& shared) {
  __syncthreads();
  for (int i = threadIdx.x; i < LOCAL_TILES; i += THREADS) {
    const int added = shared.tile_nnz[i];
    if (added > 0) atomicAdd(p.tile_nnz + shared.first_tile + i, added);
  }
}

// Reduces the statistics of each warp to one entry in shared memory.
__device__ __forceinline__ void reduce_by_warp(const Arguments& p, const ThreadStats& stats,
                                               Shared& shared) {
  u32 flags = stats.all_flags(p);
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
  if (flags & INVALID) p.state->is_invalid = 1;
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

// Each warp checks and counts its share of the nonzeros and of the entries of crow, WARP_ITEMS at a time;
// the next ones are loaded meanwhile.
extern "C" __global__ void __launch_bounds__(THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  Shared& block = *reinterpret_cast<Shared*>(shared);
  const i64 begin = (static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / 32) * p.share;
  const i64 end = begin + p.share;
  Items next;
  next.load(p, begin);
  Predecessor before = find_predecessor(p, begin);
  if (p.tile_nnz != nullptr) start_count(p, before, block);
  ThreadStats stats;
  for (i64 at = begin; at < end; at += WARP_ITEMS) {
    if (CSR && at <= p.m &&
        !check_rows<WARP_ITEMS / 32>(p.major_indices, p.m, p.nnz, at + threadIdx.x % 32, 32))
      stats.flags |= INVALID;
    if (at > p.nnz || p.m == 0) continue;
    const Items items = next;
    if (at + WARP_ITEMS < end) next.load(p, at + WARP_ITEMS);
    process_items(p, at, items, before, block, stats);
  }
  if (p.tile_nnz != nullptr) finish_count(p, block);
  reduce_by_warp(p, stats, block);
  if (threadIdx.x == 0) publish(p, block.stats);
}
