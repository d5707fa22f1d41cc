// Products W X by windows of columns of W: adds to spmm_gather that a block keeps a slice of the rows
// of X of one window in shared memory, and leaves a sum of each row for each window. Limit: the rate
// of shared memory, a slice of a row of X per nonzero, and the instructions that add it.
#include "gemm_core/parameters.cuh"
#include "sddmm/row_values.cuh"
#include "sddmm/window_rows.cuh"

using namespace sddmm;

// What spmm_windows/host.py chooses, by macro.
struct Config {
  // The types of X and of the weights.
  using Element = SDDMM_ELEMENT;
  using Weight = SDDMM_WEIGHT;
  // The number of bytes of one load; all rows start and end at multiples of it: 2, 4, 8 or 16.
  static constexpr int LOAD_BYTES = SDDMM_LOAD_BYTES;
  // Whether rows end where a slice ends, so that no load needs a guard.
  static constexpr bool NO_TAIL = SDDMM_NO_TAIL;
  // The number of bytes of a slice of a row of X.
  static constexpr int SLICE_BYTES = SDDMM_SLICE_BYTES;
  // The number of threads of a block, of which a multiprocessor holds one.
  static constexpr int THREADS = SDDMM_THREADS;
};

using Element = Config::Element;
using Weight = Config::Weight;
constexpr int LANES = Config::SLICE_BYTES / 16, GROUPS = Config::THREADS / LANES;
constexpr int ELEMENTS = CHUNK_ELEMENTS<Element>, COLUMNS = LANES * ELEMENTS;
// The number of entries that a group loads at once, and of rows of X that it then has in flight.
constexpr int BATCH = 8, IN_FLIGHT = 4;
// An entry: the nonzero's column in its window, whether it is the last of its row there, and whether
// it stands for a row that has none there.
constexpr int LAST = 0x8000, EMPTY = 0x4000, SLOT = 0x3fff;

// Entries and weights come window by window, and row by row in a window, whose rows have one at least.
// Each group adds whole rows of one window.
struct Arguments {
  const Element* dense;
  const Weight* weights;  // (heads, head_weights), in the order of the entries
  float* partial;         // (heads, slices, windows, row_pitch, COLUMNS)
  const unsigned short* entries;
  const int2* bounds;         // (segments, GROUPS + 1): the first row and entry of each group
  const int2* segments;       // (segments,): the window, and the slice of which head
  const int* first_segments;  // (blocks + 1,)
  i64 pitch, head_dense, head_weights;  // elements from row to row, and from head to head
  int slices, windows, width, row_pitch, n, k;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// BATCH entries and their weights. A template, so that only the branch that holds is compiled.
template <class W>
struct Batch {
  static constexpr int WEIGHT_CHUNKS = BATCH * sizeof(W) / 16;
  Chunk entries, weights[WEIGHT_CHUNKS];

  __device__ __forceinline__ void load(const unsigned short* all_entries, const W* all_weights,
                                       int first) {
    entries = *reinterpret_cast<const Chunk*>(all_entries + first);
#pragma unroll
    for (int i = 0; i < WEIGHT_CHUNKS; ++i)
      weights[i] = reinterpret_cast<const Chunk*>(all_weights + first)[i];
  }
  __device__ __forceinline__ int entry(int j) const {
    return entries.word[j / 2] >> (j % 2 * 16) & 0xffff;
  }
  __device__ __forceinline__ bool has_empty() const {
    constexpr u32 both = EMPTY << 16 | EMPTY;
    return ((entries.word[0] | entries.word[1] | entries.word[2] | entries.word[3]) & both) != 0;
  }
  __device__ __forceinline__ float weight(int j) const {
    if constexpr (sizeof(W) == 2) {
      float low, high;
      unpack(weights[0].word[j / 2], low, high, W{});
      return j % 2 ? high : low;
    } else {
      return __uint_as_float(weights[j / 4].word[j % 4]);
    }
  }
};

// The sums of a lane for one row after the other, and where those of the row go.
struct RowSums {
  float sums[ELEMENTS] = {};
  float* to;

  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int i = 0; i < ELEMENTS; i += 4)  // they stay in L2, for the next pass
      *reinterpret_cast<float4*>(to + i) = {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) sums[i] = 0;
    to += COLUMNS;
  }
};

// Adds the entries of a batch that are numbered begin .. end - 1. ALL: it is all of them, and none
// is empty.
template <bool ALL>
__device__ __forceinline__ void add(const Batch<Weight>& batch, int begin, int end,
                                    const unsigned char* own_chunks, RowSums& sums) {
#pragma unroll
  for (int first = 0; first < BATCH; first += IN_FLIGHT) {
    Chunk x[IN_FLIGHT];
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; ++j)
      x[j] = *reinterpret_cast<const Chunk*>(own_chunks + (batch.entry(first + j) & SLOT) *
                                                              Config::SLICE_BYTES);
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; ++j) {
      if (!ALL && (first + j < begin || first + j >= end)) continue;
      const int entry = batch.entry(first + j);
      if (ALL || !(entry & EMPTY)) add_scaled<Element>(sums.sums, x[j], batch.weight(first + j));
      if (entry & LAST) sums.finish();
    }
  }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, 1)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const int end_segment = p.first_segments[blockIdx.x + 1];
  for (int s = p.first_segments[blockIdx.x]; s < end_segment; ++s) {
    const int2 segment = p.segments[s];
    const int window = segment.x, part = segment.y;
    const int head = part / p.slices, column = (part - head * p.slices) * COLUMNS;
    const int2* const bounds = p.bounds + static_cast<i64>(s) * (GROUPS + 1) + group;
    const int2 from = bounds[0], to = bounds[1];
    const Weight* const weights = p.weights + head * p.head_weights;
    int first = from.y < to.y ? from.y / BATCH * BATCH : to.y;
    Batch<Weight> next;
    if (first < to.y) next.load(p.entries, weights, first);

    const int first_row = window * p.width;
    const Element* const rows =
        p.dense + head * p.head_dense + static_cast<i64>(first_row) * p.pitch + column;
    __syncthreads();  // all groups have read the last window
    start_window<Config::SLICE_BYTES, Config::THREADS, Config::LOAD_BYTES, Config::NO_TAIL>(
        shared, rows, p.pitch, p.k - column,
        p.n - first_row < p.width ? p.n - first_row : p.width);
    gemm_core::ptx::cp_async_wait<0>();
    __syncthreads();

    RowSums sums;
    const i64 sums_row = (static_cast<i64>(part) * p.windows + window) * p.row_pitch + from.x;
    sums.to = p.partial + sums_row * COLUMNS + lane * ELEMENTS;
    for (; first < to.y; first += BATCH) {
      const Batch<Weight> batch = next;
      if (first + BATCH < to.y) next.load(p.entries, weights, first + BATCH);
      const bool all = first >= from.y && first + BATCH <= to.y && !batch.has_empty();
      if (all) {
        add<true>(batch, 0, BATCH, shared + lane * 16, sums);
      } else {
        add<false>(batch, from.y - first, to.y - first, shared + lane * 16, sums);
      }
    }
  }
}
