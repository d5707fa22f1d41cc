// SpMM by gathering: each warp takes equally many nonzeros and rows, loads a row of X per nonzero by
// 16 bytes a lane, and keeps the sums of a row of the result in registers until the row ends. Adds
// no atomics: pieces of rows are added in a fixed order. Limit: a row of X per nonzero, out of L2.
#include "gemm_core/parameters.cuh"
#include "sddmm/product_rows.cuh"
#include "sddmm/row_shares.cuh"
#include "sddmm/warp.cuh"

using namespace sddmm;

// What spmm_gather/host.py chooses, by macro.
struct Config {
  // The types of X, of the weights and of the result.
  using Element = SDDMM_ELEMENT;
  using Value = SDDMM_VALUE;
  using Output = SDDMM_OUTPUT;
  // The number of bytes of one load of X, whose rows start and end at multiples of it.
  static constexpr int LOAD_BYTES = SDDMM_LOAD_BYTES;
  // The number of bytes of one store of the result, whose rows start and end at multiples of it.
  static constexpr int STORE_BYTES = SDDMM_STORE_BYTES;
  // Whether rows end where a slice ends, so that every lane stores a whole chunk.
  static constexpr bool NO_TAIL = SDDMM_NO_TAIL;
  // Whether weights are read through `perm`, and whether they are multiplied by `factors`.
  static constexpr bool HAS_PERM = SDDMM_HAS_PERM, HAS_FACTORS = SDDMM_HAS_FACTORS;
  // Whether the last rows of X stand elsewhere, at `beyond`.
  static constexpr bool HAS_BEYOND = SDDMM_HAS_BEYOND;
  // Whether row i is added to `addend` and stored at row out_rows[i] of the result; without heads.
  static constexpr bool HAS_ADDEND = SDDMM_HAS_ADDEND;
  // The type of a number of a nonzero: int where there are few enough.
  using Position = SDDMM_POSITION;
  // The number of lanes that load a slice of a row, 16 bytes each: a group; a power of two.
  static constexpr int LANES = SDDMM_LANES;
  // The number of nonzeros of a group whose loads are in flight together.
  static constexpr int BATCH = SDDMM_BATCH;
  // The number of threads of a block, and of blocks that the registers of a multiprocessor hold.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
  // The number of bytes of shared memory of a block.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Element = Config::Element;
using Value = Config::Value;
constexpr bool IS_DOUBLE = sizeof(Element) == 8 || sizeof(Value) == 8;
using Acc = gemm_core::Select<IS_DOUBLE, double, float>::type;
using Position = Config::Position;
constexpr int LANES = Config::LANES, BATCH = Config::BATCH;
constexpr int WARPS = Config::THREADS / 32, GROUPS_PER_WARP = 32 / LANES;
constexpr int GROUPS = WARPS * GROUPS_PER_WARP;
constexpr int ELEMENTS = CHUNK_ELEMENTS<Element>;
// The number of columns of a slice.
constexpr int COLUMNS = LANES * ELEMENTS;
// The number of nonzeros of a group whose indices are loaded together, and of those of a lane.
constexpr int STRIDE = LANES > BATCH ? LANES : BATCH, PER_LANE = STRIDE / LANES;

struct Arguments {
  const Element* dense;
  const Element* beyond;  // the rows of X from `first_beyond` on; null without HAS_BEYOND
  const Value* values;
  const Element* factors;  // (nnz,); null without HAS_FACTORS
  Config::Output* out;
  const int *rows, *cols, *perm;  // (nnz,), sorted by row; perm is null without HAS_PERM
  const RowShare* shares;         // (blocks, WARPS)
  // The sums of a block for a row that begins before the block, and of one that ends after it:
  // (heads, slices, blocks, 2, COLUMNS).
  Acc* pieces;
  // For each block, the row of the nonzero before it, -1 if there is none; and the row that begins
  // before the block and ends in it, -1 if none does.
  int* records;
  i64 head_dense, head_values, head_out;  // elements from head to head
  int pitch_bytes, pitch_beyond;          // bytes from row to row of X
  int first_beyond;
  int blocks, slices;                     // the number of blocks of a slice of a head
  int first_block, own_blocks;            // those of this launch
  int k;
  double alpha;
  const Acc* addend;      // (m, k), scaled already; null without HAS_ADDEND
  const i64* out_rows;  // (m,)
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// What a block keeps in shared memory until its end: its number among those of its part, a slice of
// a head, and the part; the row of the nonzero before it, and whether its last row goes on after it.
struct BlockFacts {
  int number, part, row_before, goes_on;
};

// What a group leaves for other groups: the sums of its first row, if that begins before the group,
// and those of its last row, if that begins in the group and ends after it.
struct Pieces {
  static constexpr int SUMS = Config::THREADS * ELEMENTS;
  static constexpr int BYTES =
      2 * SUMS * sizeof(Acc) + GROUPS * (sizeof(i64) + sizeof(Acc) + 3 * sizeof(int)) +
      sizeof(BlockFacts);
  Acc* sums;
  // What a group keeps of its own in shared memory, as it has few registers: its first nonzero, a
  // copy of alpha, its first row, -1 if that does not begin before the group, and the row of the
  // nonzero after the group.
  i64* begin;
  Acc* alpha;
  int *first_row, *after;
  int* has_last;
  BlockFacts* block;

  explicit __device__ Pieces(unsigned char* shared)
      : sums(reinterpret_cast<Acc*>(shared)),
        begin(reinterpret_cast<i64*>(sums + 2 * SUMS)),
        alpha(reinterpret_cast<Acc*>(begin + GROUPS)),
        first_row(reinterpret_cast<int*>(alpha + GROUPS)),
        after(first_row + GROUPS),
        has_last(after + GROUPS),
        block(reinterpret_cast<BlockFacts*>(has_last + GROUPS)) {}
  __device__ __forceinline__ Acc& at(int which, int i, int thread) const {
    return sums[(which * ELEMENTS + i) * Config::THREADS + thread];
  }
  __device__ __forceinline__ void store(int which, const Acc (&x)[ELEMENTS]) const {
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) at(which, i, threadIdx.x) = x[i];
  }
  // Adds what the groups before `group` hold of a row that reaches into it. Returns whether the row
  // begins in this block.
  __device__ __forceinline__ bool add_before(int group, Acc (&x)[ELEMENTS]) const {
    for (int thread = static_cast<int>(threadIdx.x) % LANES + (group - 1) * LANES; thread >= 0;
         thread -= LANES) {
      const int begins = has_last[thread / LANES];
#pragma unroll
      for (int i = 0; i < ELEMENTS; ++i) x[i] += at(begins, i, thread);
      if (begins) return true;
    }
    return false;
  }
};
static_assert(Pieces::BYTES <= Config::SHARED_BYTES, "they fit into shared memory");

using Columns = LaneColumns<Config, Acc, Arguments>;
using Dense = DenseRows<Config, Arguments>;

// The indices and the weights of the nonzeros of a group, STRIDE at a time, PER_LANE in each lane.
// Weights stay as they are loaded until they are multiplied: a conversion waits for the load.
struct Indices {
  int row[PER_LANE], col[PER_LANE];  // row: -1 past the end of the group
  Value value[PER_LANE];
  Element factor[PER_LANE];

  __device__ __forceinline__ Acc weight(int q) const {
    const Acc weight = static_cast<Acc>(widened(value[q]));
    return Config::HAS_FACTORS ? weight * static_cast<Acc>(widened(factor[q])) : weight;
  }
};

// Loads the indices of the nonzeros of a group. Past the end of the group they are those of column
// 0, whose elements are loaded and not added.
struct IndexLoader {
  const int *rows, *cols, *perm;
  const Value* values;
  const Element* factors;
  const i64* begin;  // the group's first nonzero
  int count;         // the number of its nonzeros

  static __device__ __forceinline__ int own(int at, int q) {
    return at + q * LANES + static_cast<int>(threadIdx.x) % LANES;
  }
  __device__ __forceinline__ void load_positions(int at, int (&positions)[PER_LANE]) const {
#pragma unroll
    for (int q = 0; Config::HAS_PERM && q < PER_LANE; ++q)
      if (own(at, q) < count) positions[q] = perm[static_cast<Position>(*begin) + own(at, q)];
  }
  __device__ __forceinline__ void load(int at, const int (&positions)[PER_LANE],
                                       Indices& indices) const {
#pragma unroll
    for (int q = 0; q < PER_LANE; ++q) {
      indices.row[q] = -1, indices.col[q] = 0;
      indices.value[q] = Value{}, indices.factor[q] = Element{};
      if (own(at, q) >= count) continue;
      const Position i = static_cast<Position>(*begin) + own(at, q);
      const Position position = Config::HAS_PERM ? positions[q] : i;
      indices.row[q] = rows[i];
      indices.col[q] = cols[i];
      indices.value[q] = values[position];
      if (Config::HAS_FACTORS) indices.factor[q] = factors[position];
    }
  }
};

// The sums of a group for the rows of its nonzeros, one row after the other.
struct RowSums {
  Acc sums[ELEMENTS] = {};
  int row;  // the row that is summed now; -2, that of no nonzero, in a group without any

  // Stores the sums of a row that ends in the group.
  __device__ __forceinline__ void finish(const Columns& out, const Pieces& pieces) {
    if (row == pieces.first_row[threadIdx.x / LANES]) {
      pieces.store(0, sums);
    } else {
      out.store(row, sums);
    }
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) sums[i] = 0;
  }
};

// The nonzeros of all groups of a warp at which a row begins, or which are past the end of their
// group: for each of a lane's nonzeros, the bits of the lanes.
struct Breaks {
  u32 lanes[PER_LANE];

  // row: that of the nonzero before.
  __device__ __forceinline__ Breaks(const Indices& now, int row) {
    const int in_group = threadIdx.x % LANES;
#pragma unroll
    for (int q = 0; q < PER_LANE; ++q) {
      const int before = __shfl_sync(FULL_MASK, now.row[q], in_group + LANES - 1, LANES);
      const bool begins = now.row[q] != (in_group == 0 ? row : before);
      lanes[q] = __ballot_sync(FULL_MASK, begins || now.row[q] < 0);
      row = before;
    }
  }
  // Whether there is one among COUNT nonzeros of any group, from number `first` on.
  template <int COUNT>
  __device__ __forceinline__ bool any(int first) const {
    constexpr u32 groups = LANES == 32 ? 1u : FULL_MASK / ((1u << LANES % 32) - 1);
    u32 found = 0;
    if constexpr (COUNT <= LANES) {
      found = lanes[first / LANES] & (groups * ((1ull << COUNT) - 1)) << first % LANES;
    } else {
#pragma unroll
      for (int q = 0; q < PER_LANE; ++q) found |= lanes[q];
    }
    return found != 0;
  }
};

// Adds BATCH nonzeros of each group, number `batch` of those in `now` and the next ones.
__device__ __forceinline__ void add_batch(const Dense& dense, const Indices& now,
                                          const Acc (&weights)[PER_LANE], const Breaks& breaks,
                                          int batch, const Columns& out, const Pieces& pieces,
                                          RowSums& sums) {
  // That of nonzero j of the batch, from the lane and the register that hold it.
  auto of = [&](const auto& own, int j) {
    return PER_LANE > 1 ? __shfl_sync(FULL_MASK, own[j / LANES], j % LANES, LANES)
                        : __shfl_sync(FULL_MASK, own[0], batch + j, LANES);
  };
  Chunk x[BATCH];
#pragma unroll
  for (int j = 0; j < BATCH; ++j) x[j] = dense.chunk(of(now.col, j));
  if (!breaks.any<BATCH>(PER_LANE > 1 ? 0 : batch)) {
#pragma unroll
    for (int j = 0; j < BATCH; ++j) add_scaled<Element>(sums.sums, x[j], of(weights, j));
    return;
  }
#pragma unroll
  for (int j = 0; j < BATCH; ++j) {
    if (breaks.any<1>(PER_LANE > 1 ? j : batch + j)) {
      const int row = of(now.row, j);
      if (row < 0) {
        x[j] = Chunk{};
      } else if (row != sums.row) {
        sums.finish(out, pieces);
#pragma unroll 1
        while (++sums.row < row) out.store_empty(sums.row);
      }
    }
    add_scaled<Element>(sums.sums, x[j], of(weights, j));
  }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  const Pieces pieces(shared);
  const int part = gridDim.x == p.own_blocks ? 0 : blockIdx.x / p.own_blocks;
  const int block = p.first_block + blockIdx.x - part * p.own_blocks;
  const int head = part == 0 ? 0 : part / p.slices, slice = part - head * p.slices;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = threadIdx.x / LANES, group_of_warp = lane / LANES, in_group = lane % LANES;
  const int column = slice * COLUMNS + in_group * ELEMENTS;
  const Columns out{p.out + head * p.head_out + column, p.k,
                    Config::NO_TAIL ? ELEMENTS : p.k - column, pieces.alpha + group, p};
  const Dense dense(p, head, column);

  const RowShare share = p.shares[block * WARPS + warp];
  const int count = static_cast<int>(share.end - share.begin);
  const int per_group = (count + GROUPS_PER_WARP - 1) / GROUPS_PER_WARP;
  auto least = [](int a, int b) { return a < b ? a : b; };
  const int first = least(group_of_warp * per_group, count), end = least(first + per_group, count);
  const IndexLoader loader{p.rows, p.cols, p.perm, p.values + head * p.head_values, p.factors,
                           pieces.begin + group, end - first};

  if (in_group == 0) pieces.begin[group] = share.begin + first;
  __syncwarp();
  Indices next;
  int positions[PER_LANE] = {};
  loader.load_positions(0, positions);
  loader.load(0, positions, next);
  loader.load_positions(STRIDE, positions);

  // The rows of the nonzero before the group's, of its first, and of that after its last.
  int before = share.before, row = -2, after = share.after;
  if (first > 0) before = p.rows[share.begin + first - 1];
  if (first < end) row = p.rows[share.begin + first];
  if (end < count) after = p.rows[share.begin + end];
  RowSums sums;
  sums.row = row;
  if (in_group == 0) {
    pieces.first_row[group] = row == before ? row : -1;
    pieces.after[group] = first < end ? after : -1;
    pieces.alpha[group] = static_cast<Acc>(p.alpha);
  }
  if (threadIdx.x == 0) {
    pieces.block->number = block, pieces.block->part = part;
    pieces.block->row_before = share.before;
  }
  if (threadIdx.x == Config::THREADS - 1)
    pieces.block->goes_on = share.last == share.after && share.last >= 0;
  __syncwarp();
  if (first < end && row != before)
    for (int r = before >= share.first_row ? before + 1 : share.first_row; r < row; ++r)
      out.store_empty(r);
  // Rows without nonzeros at the end of the warp's share.
  for (int r = (share.last >= share.first_row ? share.last + 1 : share.first_row) + group_of_warp;
       r < share.end_row; r += GROUPS_PER_WARP)
    out.store_empty(r);

  // The number of nonzeros of the longest group.
  const int longest = GROUPS_PER_WARP == 1 ? loader.count : per_group;
#pragma unroll 1
  for (int at = 0; at < longest; at += STRIDE) {
    const Indices now = next;
    Acc weights[PER_LANE];
#pragma unroll
    for (int q = 0; q < PER_LANE; ++q) weights[q] = now.weight(q);
    const Breaks breaks(now, sums.row);
    if (at + STRIDE < longest) {
      loader.load(at + STRIDE, positions, next);
      loader.load_positions(at + 2 * STRIDE, positions);
    }
#pragma unroll 1
    for (int batch = 0; batch < STRIDE && at + batch < longest; batch += BATCH)
      add_batch(dense, now, weights, breaks, batch, out, pieces, sums);
  }

  // What is left of the group's last row.
  const int first_row = pieces.first_row[group];
  const bool is_open = pieces.after[group] == sums.row;
  const bool is_first = sums.row == first_row || sums.row < 0;
  const bool closes = first_row >= 0 && !(is_first && is_open);
  if (is_first) {
    pieces.store(0, sums.sums);
  } else if (is_open) {
    pieces.store(1, sums.sums);
  } else {
    out.store(sums.row, sums.sums);
  }
  if (in_group == 0) pieces.has_last[group] = !is_first && is_open;
  if (threadIdx.x == 0 && pieces.block->part == 0 && p.records != nullptr) {
    int* const record = p.records + 2 * pieces.block->number;
    record[0] = pieces.block->row_before, record[1] = -1;
  }
  __syncthreads();

  const BlockFacts own = *pieces.block;
  Acc* const of_block = p.pieces +
                        (static_cast<i64>(own.part) * p.blocks + own.number) * 2 * COLUMNS +
                        in_group * ELEMENTS;
  auto store_piece = [&](int which, const Acc(&piece)[ELEMENTS]) {
    store_elements<16>(of_block + which * COLUMNS, piece, ELEMENTS);
  };
  if (closes) {  // the group's first row ends in it
    Acc piece[ELEMENTS];
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) piece[i] = pieces.at(0, i, threadIdx.x);
    if (pieces.add_before(group, piece)) {
      out.store(first_row, piece);
    } else {
      store_piece(0, piece);
      if (own.part == 0 && in_group == 0 && p.records != nullptr)
        p.records[2 * own.number + 1] = first_row;
    }
  }
  if (group == GROUPS - 1 && own.goes_on) {
    Acc piece[ELEMENTS] = {};
    store_piece(pieces.add_before(GROUPS, piece), piece);
  }
}
