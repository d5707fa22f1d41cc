// SDDMM by windows of columns: adds to row_gather that a block keeps the rows of B of one window in
// shared memory, so a nonzero reads its row of B there and its row of A is loaded once per row and
// window. Limit: the rate of shared memory, and rows with few nonzeros in a window.
#include "gemm_core/parameters.cuh"
#include "sddmm/gather.cuh"

using namespace sddmm;

// What windows/host.py chooses, by macro.
struct Config {
  // The types of the operands and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of bytes of one load; all rows start and end at multiples of it: 2, 4, 8 or 16.
  static constexpr int LOAD_BYTES = SDDMM_LOAD_BYTES;
  // The number of bytes of a row that the four lanes of a nonzero load in one pass.
  static constexpr int PASS_BYTES = SDDMM_PASS_BYTES;
  // Whether one pass loads a whole row.
  static constexpr bool ONE_PASS = SDDMM_ONE_PASS;
  // Whether rows end where a pass ends, so that no load needs a guard.
  static constexpr bool NO_TAIL = SDDMM_NO_TAIL;
  // The number of batches of eight nonzeros that a warp works on at once.
  static constexpr int BATCHES = SDDMM_BATCHES;
  // The number of threads of a block, of which a multiprocessor holds one.
  static constexpr int THREADS = SDDMM_THREADS;
};

using Element = Config::Element;
using RowsA = GlobalRows<Element, Config::LOAD_BYTES, Config::NO_TAIL>;
constexpr int LOADS_PER_PASS = Config::PASS_BYTES / STEP_BYTES;
static_assert(Config::PASS_BYTES % STEP_BYTES == 0, "every lane loads equally many chunks");

// Rows of B in shared memory, `pitch` bytes apart.
struct SharedRows {
  const unsigned char* first;
  int pitch;

  static constexpr bool IN_SHARED = true;
  struct Row {
    const unsigned char* bytes;
    __device__ __forceinline__ Chunk load(int chunk) const {
      return reinterpret_cast<const Chunk*>(bytes)[chunk];
    }
  };
  __device__ __forceinline__ Row row(int slot) const { return {first + slot * pitch}; }
};

// Loads the first `count` rows of b into shared memory, with zeros from k up to the pitch.
__device__ __forceinline__ void load_window(unsigned char* shared, const Element* b, i64 pitch_b,
                                            int k, int count, int pitch) {
  const int chunks = pitch / 16;
  for (int i = threadIdx.x; i < count * chunks; i += Config::THREADS) {
    const int slot = i / chunks, chunk = i - slot * chunks;
    reinterpret_cast<Chunk*>(shared + slot * pitch)[chunk] =
        load_chunk<Config::LOAD_BYTES, Config::NO_TAIL>(
            b + slot * pitch_b, chunk * static_cast<int>(16 / sizeof(Element)), k);
  }
}

// Nonzeros are sorted by window: window_offsets[w] is the first of window w. Slot s of window w is
// column window_width * w + s.
struct Arguments {
  const Element *a, *b, *values;
  Config::Output* out;
  const int *rows, *slots, *perm, *window_offsets;
  i64 pitch_a, pitch_b;          // elements from row to row
  i64 head_a, head_b, head_out;  // elements from head to head
  int nnz, blocks_per_head, nnz_per_block;
  int window_count, window_width, n, k;
  double alpha;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// The last window that begins at or before nonzero i.
__device__ __forceinline__ int find_window(const Arguments& p, int i) {
  int window = 0;
  for (int last = p.window_count; last - window > 1;) {
    const int middle = (window + last) / 2;
    if (p.window_offsets[middle] <= i) {
      window = middle;
    } else {
      last = middle;
    }
  }
  return window;
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, 1)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int pass_elements = Config::PASS_BYTES / sizeof(Element);
  constexpr int WARPS = Config::THREADS / 32, GROUP = BATCH_NONZEROS * Config::BATCHES;
  const int passes = p.k > pass_elements ? (p.k + pass_elements - 1) / pass_elements : 1;
  const int pitch = passes * Config::PASS_BYTES;

  // Which nonzeros of which head this block computes.
  const int head = blockIdx.x / p.blocks_per_head;
  const int begin = (blockIdx.x - head * p.blocks_per_head) * p.nnz_per_block;
  const int end = begin + p.nnz_per_block < p.nnz ? begin + p.nnz_per_block : p.nnz;
  const Element *const a = p.a + head * p.head_a, *const b = p.b + head * p.head_b;
  const Result<Element, Config::Output> result{p.out + head * p.head_out, p.values,
                                               static_cast<Sum<Element>>(p.alpha)};

  for (int w = find_window(p, begin); w < p.window_count && p.window_offsets[w] < end; ++w) {
    const int from = p.window_offsets[w] > begin ? p.window_offsets[w] : begin;
    const int to = p.window_offsets[w + 1] < end ? p.window_offsets[w + 1] : end;
    if (from >= to) continue;
    __syncthreads();  // all warps have read the last window
    const int first = w * p.window_width;
    const int slots = p.n - first < p.window_width ? p.n - first : p.window_width;
    load_window(shared, b + first * p.pitch_b, p.pitch_b, p.k, slots, pitch);
    __syncthreads();

    // Each warp takes an equal number of groups of the window's nonzeros.
    const int nnz_per_warp = ((to - from) / WARPS + GROUP) / GROUP * GROUP;
    const int warp_begin = from + threadIdx.x / 32 * nnz_per_warp;
    const int warp_end = warp_begin + nnz_per_warp < to ? warp_begin + nnz_per_warp : to;
    if (warp_begin < warp_end)
      gather<Element, Config::BATCHES, LOADS_PER_PASS, Config::ONE_PASS, LOADS_PER_PASS % 2 == 0>(
          RowsA{a, p.pitch_a, p.k}, SharedRows{shared, pitch}, p.rows, p.slots, p.perm, warp_begin,
          warp_end, passes,
          [&](i64 position, Sum<Element> sum) { result.store(position, sum); });
  }
}
