// SpMM of short rows: each group of lanes takes one row, loads a row of X per nonzero by 16 bytes a
// lane, and stores the sums. Adds no search and no pieces of rows to the loads.
// Limit: a row of X per nonzero, out of L2, and for few rows the latency of three dependent loads.
#include "gemm_core/parameters.cuh"
#include "sddmm/product_rows.cuh"
#include "sddmm/warp.cuh"

using namespace sddmm;

// What spmm_rows/host.py chooses, by macro.
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
  // The number of lanes that load a slice of a row, 16 bytes each: a group; a power of two.
  static constexpr int LANES = SDDMM_LANES;
  // The number of nonzeros of a group whose loads are in flight together.
  static constexpr int BATCH = SDDMM_BATCH;
  // The number of threads of a block, and of blocks that the registers of a multiprocessor hold.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
};

using Element = Config::Element;
using Value = Config::Value;
constexpr bool IS_DOUBLE = sizeof(Element) == 8 || sizeof(Value) == 8;
using Acc = gemm_core::Select<IS_DOUBLE, double, float>::type;
constexpr int LANES = Config::LANES, BATCH = Config::BATCH;
constexpr int ROWS = Config::THREADS / LANES;  // of a block
constexpr int ELEMENTS = CHUNK_ELEMENTS<Element>;
// The number of nonzeros of a group whose indices are loaded together, and of those of a lane.
constexpr int STRIDE = LANES > BATCH ? LANES : BATCH, PER_LANE = STRIDE / LANES;

struct Arguments {
  const Element* dense;
  const Element* beyond;  // the rows of X from `first_beyond` on; null without HAS_BEYOND
  const Value* values;
  const Element* factors;  // (nnz,); null without HAS_FACTORS
  Config::Output* out;
  const int *offsets, *cols, *perm;  // (m + 1,); (nnz,) of both, perm is null without HAS_PERM
  i64 head_dense, head_values, head_out;  // elements from head to head
  int pitch_bytes, pitch_beyond;          // bytes from row to row of X
  int first_beyond;
  int m, slices, k;
  int own_blocks;  // those of a slice of a head
  double alpha;
  const Acc* addend;    // (m, k), scaled already; null without HAS_ADDEND
  const i64* out_rows;  // (m,)
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// The nonzeros of a row: first .. end - 1.
struct Range {
  int first = 0, end = 0;

  Range() = default;
  // Those of a row; none where row >= m.
  __device__ __forceinline__ Range(const Arguments& p, int row) {
    if (row < p.m) first = p.offsets[row], end = p.offsets[row + 1];
  }
  // This lane's nonzero number q.
  static __device__ __forceinline__ int own(int first, int q) {
    return first + q * LANES + static_cast<int>(threadIdx.x) % LANES;
  }
};

// Where the weights of a lane's nonzeros are, PER_LANE of a range: loaded before these.
struct Positions {
  int own[PER_LANE] = {};

  __device__ __forceinline__ Positions(const Arguments& p, const Range& range) {
#pragma unroll
    for (int q = 0; q < PER_LANE; ++q) {
      const int i = Range::own(range.first, q);
      own[q] = i;
      if (Config::HAS_PERM && i < range.end) own[q] = p.perm[i];
    }
  }
};

// The columns and the weights of the nonzeros of a group, STRIDE at a time, PER_LANE in each lane;
// past the end of the row column 0 and weight 0. Weights stay as they are loaded until they are
// multiplied: a conversion waits for the load.
struct Indices {
  int col[PER_LANE];
  Value value[PER_LANE];
  Element factor[PER_LANE];

  __device__ __forceinline__ Indices(const Arguments& p, const Value* values, const Range& range,
                                     const Positions& at) {
#pragma unroll
    for (int q = 0; q < PER_LANE; ++q) {
      const int i = Range::own(range.first, q), position = Config::HAS_PERM ? at.own[q] : i;
      col[q] = 0, value[q] = Value{}, factor[q] = Element{};
      if (i >= range.end) continue;
      col[q] = p.cols[i];
      value[q] = values[position];
      if (Config::HAS_FACTORS) factor[q] = p.factors[position];
    }
  }
  __device__ __forceinline__ Acc weight(int q) const {
    const Acc weight = static_cast<Acc>(widened(value[q]));
    return Config::HAS_FACTORS ? weight * static_cast<Acc>(widened(factor[q])) : weight;
  }
};

// That of nonzero j of batch number `batch`, from the lane and the register that hold it.
template <class T>
__device__ __forceinline__ T of_batch(const T (&own)[PER_LANE], int batch, int j) {
  return PER_LANE > 1 ? __shfl_sync(FULL_MASK, own[j / LANES], j % LANES, LANES)
                      : __shfl_sync(FULL_MASK, own[0], batch + j, LANES);
}

// Adds the nonzeros `now`, the first of `left` of each group that are left.
__device__ __forceinline__ void add_nonzeros(const DenseRows<Config, Arguments>& dense,
                                             const Indices& now, int left, Acc (&sums)[ELEMENTS]) {
  Acc weights[PER_LANE];
#pragma unroll
  for (int q = 0; q < PER_LANE; ++q) weights[q] = now.weight(q);
#pragma unroll 1
  for (int batch = 0; batch < STRIDE; batch += BATCH) {
    // All lanes of a warp shuffle, so that it ends where none of its groups has more.
    if (batch > 0 && !__any_sync(FULL_MASK, left > batch)) break;
    Chunk x[BATCH];
#pragma unroll
    for (int j = 0; j < BATCH; ++j)
      x[j] = dense.chunk_or_zeros(batch + j < left, of_batch(now.col, batch, j));
#pragma unroll
    for (int j = 0; j < BATCH; ++j)
      add_scaled<Element>(sums, x[j], of_batch(weights, batch, j));
  }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  const int part = gridDim.x == p.own_blocks ? 0 : blockIdx.x / p.own_blocks;
  const int head = part == 0 ? 0 : part / p.slices, slice = part - head * p.slices;
  const int column = slice * LANES * ELEMENTS + static_cast<int>(threadIdx.x) % LANES * ELEMENTS;
  const int elements = Config::NO_TAIL ? ELEMENTS : p.k - column;
  const Acc alpha = static_cast<Acc>(p.alpha);
  const LaneColumns<Config, Acc, Arguments> out{p.out + head * p.head_out + column, p.k, elements,
                                                &alpha, p};
  const DenseRows<Config, Arguments> dense(p, head, column);
  const Value* const values = p.values + head * p.head_values;

  const int step = p.own_blocks * ROWS, group_of_warp = static_cast<int>(threadIdx.x) % 32 / LANES;
  int row = (blockIdx.x - part * p.own_blocks) * ROWS + static_cast<int>(threadIdx.x) / LANES;
  // While a row is summed, the indices of the group's next row are in flight, and what these wait
  // for: the positions of the row after that, if there is a permutation, and a range.
  constexpr int AHEAD = Config::HAS_PERM ? 3 : 2;
  Range ranges[AHEAD];
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) ranges[i] = Range(p, row + i * step);
  Indices now(p, values, ranges[0], Positions(p, ranges[0]));
  Positions next_at(p, ranges[1]);
#pragma unroll 1
  for (; row - group_of_warp < p.m; row += step) {
    const Range later(p, row + AHEAD * step);
    const Positions later_at(p, ranges[AHEAD - 1]);
    const Indices next(p, values, ranges[1], next_at);
    const int count = ranges[0].end - ranges[0].first;
    Acc sums[ELEMENTS] = {};
    add_nonzeros(dense, now, count, sums);
#pragma unroll 1
    for (int at = STRIDE; __any_sync(FULL_MASK, count > at); at += STRIDE) {
      ranges[0].first += STRIDE;
      const Indices more(p, values, ranges[0], Positions(p, ranges[0]));
      add_nonzeros(dense, more, count - at, sums);
    }
    if (row < p.m) out.store(row, sums);
#pragma unroll
    for (int i = 0; i < AHEAD - 1; ++i) ranges[i] = ranges[i + 1];
    ranges[AHEAD - 1] = later, now = next, next_at = later_at;
  }
}
