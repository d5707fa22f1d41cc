// SDDMM of a CSR pattern of long rows in a single launch: adds to row_gather that a warp takes a row, so
// that warps side by side find rows of B in L1, and that its first blocks check the caller's indices.
// Limit: L1's rate where neighbouring rows have the same columns, as those of masks; else L2's.
#include "gemm_core/parameters.cuh"
#include "sddmm/csr_rows.cuh"
#include "sddmm/gather.cuh"

using namespace sddmm;
using u64 = unsigned long long;

// What host.py chooses, by macro: as row_gather's, and more.
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
  // The number of threads of a block, and of blocks that the registers of a multiprocessor must
  // hold.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
};

using Element = Config::Element;
using IndexType = Config::IndexType;
constexpr int CHUNK_BYTES = CHUNK_BYTES_OF<Config::LANES, Config::PASS_BYTES>;
using RowsA = GlobalRows<Element, Config::LOAD_BYTES, Config::NO_TAIL, CHUNK_BYTES>;
using RowsB = ClampedRows<Element, Config::LOAD_BYTES, Config::NO_TAIL, CHUNK_BYTES>;

struct Arguments {
  const Element *a, *b, *values;
  // The sums over earlier slices of k, at the positions of `out`; null for the first slice.
  const Sum<Element>* partial_sums;
  Config::Output* out;
  const IndexType *crow_indices, *col_indices;  // (m + 1,) and (nnz,)
  // What the blocks that check have counted; zero before the launch, which sets next_state to zero
  // for its successor.
  u64 *state, *next_state;
  // Pinned host memory: -1 until the pattern is checked, then whether it is invalid. The host polls
  // it.
  u64* result;
  i64 nnz, pitch_a, pitch_b;     // elements from row to row
  i64 head_a, head_b, head_out;  // elements from head to head
  // The number of warps that take turns in a piece of a row; of pieces of a head; the length up to
  // which a row is one piece; and the nonzeros at multiples of which others are cut.
  int warps_per_piece, pieces, longest, cut;
  // The number of blocks, the first, that check the indices and do no more; 0 if an earlier launch
  // has.
  int checkers;
  int heads, m, n, k;
  double alpha;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// The columns in 32 bits, whatever the type of the caller's.
struct Columns {
  const IndexType* cols;
  __device__ __forceinline__ int operator[](i64 i) const { return static_cast<int>(cols[i]); }
};

// Whether the indices that this block checks are valid.
__device__ __forceinline__ bool check_indices(const Arguments& p) {
  constexpr int ITEMS = 8;  // the number of loads of a thread that are in flight together
  const i64 stride = static_cast<i64>(p.checkers) * Config::THREADS;
  const i64 first = static_cast<i64>(blockIdx.x) * Config::THREADS + threadIdx.x;
  bool valid = true;
  for (i64 i = first; i <= p.m; i += stride)
    valid &= check_rows<1>(p.crow_indices, p.m, p.nnz, i, 0);
  for (i64 begin = first; begin < p.nnz; begin += ITEMS * stride) {
    IndexType col[ITEMS];
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) {
      const i64 i = begin + j * stride;
      col[j] = i < p.nnz ? p.col_indices[i] : 0;
    }
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) valid &= static_cast<u64>(col[j]) < static_cast<u64>(p.n);
  }
  return valid;
}

// Counts the blocks that have checked, by all their threads; the last of them reports whether one
// saw an invalid index.
__device__ __forceinline__ void publish(const Arguments& p, bool valid) {
  // One word counts both: the blocks that are done below, the warps that saw an error above.
  constexpr u64 INVALID = u64{1} << 32;
  if (!__all_sync(FULL_MASK, valid) && threadIdx.x % 32 == 0) atomicAdd(p.state, INVALID);
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) *p.next_state = 0;
  __threadfence();  // before `state` counts this block
  const u64 done = atomicAdd(p.state, u64{1}) + 1;
  if (done % INVALID == static_cast<u64>(p.checkers)) *p.result = done >= INVALID;
}

// Consecutive nonzeros of a row.
struct Piece {
  int row;
  i64 begin, end;
};

// Piece i, which may be empty. Those that begin at cuts come first, as they are long; then those that
// begin with a row, the last row first: in the lower triangle it is the longest.
__device__ __forceinline__ Piece find_piece(const Arguments& p, int i) {
  const int from_end = p.pieces - 1 - i;
  const i64 cut = static_cast<i64>(i + 1) * p.cut;
  const bool begins_row = from_end < p.m;
  const int row = begins_row ? from_end : find_row(p.crow_indices, 0, p.m - 1, cut);
  const i64 first = p.crow_indices[row], last = p.crow_indices[row + 1];
  const i64 begin = first < 0 ? 0 : first < p.nnz ? first : p.nnz;
  const i64 end = last < begin ? begin : last < p.nnz ? last : p.nnz;
  if (end - begin <= p.longest) return {row, begin, begins_row ? end : begin};
  if (!begins_row && begin == cut) return {row, begin, begin};
  const i64 own_begin = begins_row ? begin : cut, next_cut = (own_begin / p.cut + 1) * p.cut;
  return {row, own_begin, end < next_cut ? end : next_cut};
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  const int block = static_cast<int>(blockIdx.x) - p.checkers;
  if (block < 0) {
    publish(p, check_indices(p));
    return;
  }
  constexpr int GROUP = GROUP_NONZEROS<Config::LANES, Config::BATCHES>;
  // Which piece of which head this warp computes, with others.
  const int warp = block * (Config::THREADS / 32) + threadIdx.x / 32;
  const int i = warp / p.warps_per_piece, head = i / p.pieces;
  if (head >= p.heads) return;
  const Piece piece = find_piece(p, i - head * p.pieces);
  const i64 begin = piece.begin + (warp - i * p.warps_per_piece) * GROUP;
  if (begin >= piece.end) return;
  const Result<Element, Config::Output> result{p.out + head * p.head_out, p.values,
                                               static_cast<Sum<Element>>(p.alpha)};
  gather<Element, Config::LANES, Config::BATCHES, Config::PASS_BYTES, Config::ONE_PASS,
         Config::SWAPPED>(
      RowsA{p.a + head * p.head_a, p.pitch_a, p.k},
      RowsB{{p.b + head * p.head_b, p.pitch_b, p.k}, p.n - 1}, OneRow{piece.row},
      Columns{p.col_indices}, nullptr, begin, piece.end, p.warps_per_piece * GROUP, p.k,
      [&](i64 position) { result.prefetch(position); },
      [&](i64 position, Sum<Element> sum) {
        if (p.partial_sums != nullptr) sum += p.partial_sums[head * p.head_out + position];
        result.store(position, sum);
      });
}
