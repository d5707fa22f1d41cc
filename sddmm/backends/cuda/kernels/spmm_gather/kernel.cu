// SpMM by gathering: each warp takes equally many nonzeros and rows, loads a row of X per nonzero by
// 16 bytes a lane, and keeps the sums of a row of the result in registers until the row ends. Adds
// no atomics: pieces of rows are added in a fixed order. Limit: a row of X per nonzero, out of L2.
#include "gemm_core/parameters.cuh"
#include "sddmm/row_shares.cuh"
#include "sddmm/row_values.cuh"

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
  // Whether rows end where a slice ends, so that no load needs a guard.
  static constexpr bool NO_TAIL = SDDMM_NO_TAIL;
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
  const Value* values;
  const Element* factors;  // (nnz,); may be null
  Config::Output* out;
  const int *rows, *cols, *perm;  // (nnz,), sorted by row; perm may be null
  // The sums of a block for a row that begins before the block, and of one that ends after it:
  // (heads, slices, blocks, 2, COLUMNS).
  Acc* pieces;
  // For each block, the row of the nonzero before it, -1 if there is none; and the row that begins
  // before the block and ends in it, -1 if none does.
  int* records;
  i64 nnz;
  i64 head_dense, head_values, head_out;  // elements from head to head
  i64 share;                              // the number of nonzeros and rows of a warp
  int pitch_bytes;                        // bytes from row to row of X
  int blocks, slices;                     // the number of blocks of a slice of a head
  int m, k;
  double alpha;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// What a group leaves for other groups: the sums of its first row, if that begins before the group,
// and those of its last row, if that begins in the group and ends after it.
struct Pieces {
  static constexpr int SUMS = Config::THREADS * ELEMENTS;
  static constexpr int BYTES = 2 * SUMS * sizeof(Acc) + GROUPS * sizeof(int);
  Acc* sums;
  int* has_last;

  explicit __device__ Pieces(unsigned char* shared)
      : sums(reinterpret_cast<Acc*>(shared)), has_last(reinterpret_cast<int*>(sums + 2 * SUMS)) {}
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

// The columns of the result that a lane computes: its chunk of a slice of a head.
struct LaneColumns {
  Config::Output* first;  // of row 0
  int pitch, elements;
  Acc alpha;
  __device__ __forceinline__ void store(int row, const Acc (&sums)[ELEMENTS]) const {
    Acc scaled[ELEMENTS];
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) scaled[i] = sums[i] * alpha;
    store_elements<Config::STORE_BYTES>(first + static_cast<i64>(row) * pitch, scaled, elements);
  }
  __device__ __forceinline__ void store_empty(int row) const {
    const Acc zeros[ELEMENTS] = {};
    store(row, zeros);
  }
};

// The indices and the weights of the nonzeros of a group, STRIDE at a time, PER_LANE in each lane.
struct Indices {
  int row[PER_LANE], col[PER_LANE];  // row: -1 past the end of the group
  Acc weight[PER_LANE];
};

// Loads the indices of the nonzeros of a group. Past the end of the group's share of the warp's it
// loads those of the warp's last nonzero, which costs no memory traffic.
struct IndexLoader {
  const int *rows, *cols, *perm;
  const Value* values;
  const Element* factors;
  i64 begin;       // the first nonzero of the warp
  int last;        // the number of nonzeros of the warp, less one
  int first, end;  // the group's share of them

  __device__ __forceinline__ int nonzero(int at, int q) const {
    const int i = first + at + q * LANES + static_cast<int>(threadIdx.x) % LANES;
    return i < last ? i : last;
  }
  // The positions in the pattern, if they are not those of the sorted nonzeros.
  __device__ __forceinline__ void load_positions(int at, int (&positions)[PER_LANE]) const {
    if (perm == nullptr) return;
#pragma unroll
    for (int q = 0; q < PER_LANE; ++q) positions[q] = perm[begin + nonzero(at, q)];
  }
  __device__ __forceinline__ void load(int at, const int (&positions)[PER_LANE],
                                       Indices& indices) const {
#pragma unroll
    for (int q = 0; q < PER_LANE; ++q) {
      const i64 i = begin + nonzero(at, q);
      const i64 position = perm == nullptr ? i : positions[q];
      const bool exists = first + at + q * LANES + static_cast<int>(threadIdx.x) % LANES < end;
      indices.row[q] = exists ? rows[i] : -1;
      indices.col[q] = cols[i];
      indices.weight[q] = static_cast<Acc>(widened(values[position]));
      if (factors != nullptr) indices.weight[q] *= static_cast<Acc>(widened(factors[position]));
    }
  }
};

// The sums of a group for the rows of its nonzeros, one row after the other.
struct RowSums {
  Acc sums[ELEMENTS] = {};
  int row;        // the row that is summed now; -2, that of no nonzero, in a group without any
  bool is_first;  // whether it begins before the group

  // Stores the sums of a row that ends in the group.
  __device__ __forceinline__ void finish(const LaneColumns& out, const Pieces& pieces) {
    if (is_first) {
      pieces.store(0, sums);
    } else {
      out.store(row, sums);
    }
    is_first = false;
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) sums[i] = 0;
  }
};

// Adds BATCH nonzeros of each group, number `batch` of those in `now` and the next ones.
__device__ __forceinline__ void add_batch(const Arguments& p, const char* dense, const Indices& now,
                                          int batch, const LaneColumns& out, const Pieces& pieces,
                                          RowSums& sums) {
  const int in_group = threadIdx.x % LANES, first_lane = threadIdx.x % 32 - in_group;
  // The lane and the register that hold nonzero j of the batch.
  auto lane_of = [&](int j) { return first_lane + (PER_LANE > 1 ? j % LANES : batch + j); };
  auto register_of = [](int j) { return PER_LANE > 1 ? j / LANES : 0; };
  Chunk x[BATCH];
#pragma unroll
  for (int j = 0; j < BATCH; ++j) {
    const int col = __shfl_sync(FULL_MASK, now.col[register_of(j)], lane_of(j));
    const auto* elements =
        reinterpret_cast<const Element*>(dense + static_cast<i64>(col) * p.pitch_bytes);
    x[j] = load_chunk<Config::LOAD_BYTES, Config::NO_TAIL>(elements, 0, out.elements);
  }
  bool alike = true;
#pragma unroll
  for (int q = 0; q < PER_LANE; ++q) {
    const bool elsewhere = PER_LANE == 1 && (in_group < batch || in_group >= batch + BATCH);
    alike = alike && (elsewhere || now.row[q] == sums.row);
  }
  if (__all_sync(FULL_MASK, alike)) {
#pragma unroll
    for (int j = 0; j < BATCH; ++j)
      add_scaled<Element>(sums.sums, x[j],
                          __shfl_sync(FULL_MASK, now.weight[register_of(j)], lane_of(j)));
    return;
  }
#pragma unroll
  for (int j = 0; j < BATCH; ++j) {
    const int row = __shfl_sync(FULL_MASK, now.row[register_of(j)], lane_of(j));
    const Acc weight = __shfl_sync(FULL_MASK, now.weight[register_of(j)], lane_of(j));
    if (row < 0) continue;
    if (row != sums.row) {
      sums.finish(out, pieces);
      while (++sums.row < row) out.store_empty(sums.row);
    }
    add_scaled<Element>(sums.sums, x[j], weight);
  }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  const Pieces pieces(shared);
  const int part = blockIdx.x / p.blocks, block = blockIdx.x - part * p.blocks;
  const int head = part / p.slices, slice = part - head * p.slices;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = threadIdx.x / LANES, group_of_warp = lane / LANES, in_group = lane % LANES;
  const int column = slice * COLUMNS + in_group * ELEMENTS;
  const LaneColumns out{p.out + head * p.head_out + column, p.k, p.k - column,
                        static_cast<Acc>(p.alpha)};
  const char* const dense =
      reinterpret_cast<const char*>(p.dense + head * p.head_dense + column);

  const RowShare share =
      row_share(p.rows, p.nnz, p.m, static_cast<i64>(block) * WARPS + warp, p.share);
  const int count = static_cast<int>(share.end - share.begin);
  const int per_group = (count + GROUPS_PER_WARP * BATCH - 1) / (GROUPS_PER_WARP * BATCH) * BATCH;
  auto least = [](int a, int b) { return a < b ? a : b; };
  const int first = least(group_of_warp * per_group, count), end = least(first + per_group, count);
  const IndexLoader loader{p.rows, p.cols, p.perm, p.values + head * p.head_values, p.factors,
                           share.begin, count - 1, first, end};

  // The rows of the nonzero before the group's, of its first, and of that after its last.
  int before = share.before, row = 0, after = share.after;
  if (first > 0) before = p.rows[share.begin + first - 1];
  if (first < end) row = p.rows[share.begin + first];
  if (end < count) after = p.rows[share.begin + end];

  RowSums sums;
  sums.row = first < end ? row : -2, sums.is_first = first == end || row == before;
  const int first_row = row;
  const bool continues = sums.is_first && first < end;
  if (first < end && !sums.is_first)
    for (int r = before >= share.first_row ? before + 1 : share.first_row; r < row; ++r)
      out.store_empty(r);
  // Rows without nonzeros at the end of the warp's share.
  for (int r = (share.last >= share.first_row ? share.last + 1 : share.first_row) + group_of_warp;
       r < share.end_row; r += GROUPS_PER_WARP)
    out.store_empty(r);

  if (per_group > 0) {
    Indices next;
    int positions[PER_LANE] = {};
    loader.load_positions(0, positions);
    loader.load(0, positions, next);
    loader.load_positions(STRIDE, positions);
#pragma unroll 1
    for (int at = 0; at < per_group; at += STRIDE) {
      const Indices now = next;
      if (at + STRIDE < per_group) {
        loader.load(at + STRIDE, positions, next);
        loader.load_positions(at + 2 * STRIDE, positions);
      }
#pragma unroll 1
      for (int batch = 0; batch < STRIDE && at + batch < per_group; batch += BATCH)
        add_batch(p, dense, now, batch, out, pieces, sums);
    }
  }

  // What is left of the group's last row.
  const bool is_open = first < end && after == sums.row;
  const bool closes = continues && !(sums.is_first && is_open);
  if (sums.is_first) {
    pieces.store(0, sums.sums);
  } else if (is_open) {
    pieces.store(1, sums.sums);
  } else {
    out.store(sums.row, sums.sums);
  }
  if (in_group == 0) pieces.has_last[group] = !sums.is_first && is_open;
  const bool records = part == 0 && p.blocks > 1;  // a single block cuts no row
  if (records && threadIdx.x == 0)
    p.records[2 * block] = share.before, p.records[2 * block + 1] = -1;
  __syncthreads();

  Acc* const of_block =
      p.pieces + (static_cast<i64>(part) * p.blocks + block) * 2 * COLUMNS + in_group * ELEMENTS;
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
      if (records && in_group == 0) p.records[2 * block + 1] = first_row;
    }
  }
  // The block's last row ends after the block.
  if (group == GROUPS - 1 && share.last == share.after && share.last >= 0) {
    Acc piece[ELEMENTS] = {};
    store_piece(pieces.add_before(GROUPS, piece), piece);
  }
}
