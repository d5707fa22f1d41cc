// SDDMM by windows of columns: adds to the gather that a block keeps the rows of B of one window in
// shared memory, so that a nonzero costs a read there and its row of A is loaded once for all of the
// row's nonzeros in the window. Limit: shared memory's rate, and rows with few nonzeros a window.
#include "sddmm/gather.cuh"

using namespace sddmm;

using Element = SDDMM_ELEMENT;
using RowsA = GlobalRows<Element, SDDMM_BYTES, SDDMM_WHOLE>;

struct SharedRows {
  const unsigned char* first;
  int pitch;  // bytes

  static constexpr bool NEAR = true;
  struct Row {
    const unsigned char* at;
    __device__ __forceinline__ Chunk load(int chunk) const {
      return reinterpret_cast<const Chunk*>(at)[chunk];
    }
  };
  __device__ __forceinline__ Row row(int i) const { return {first + i * pitch}; }
};

// The first `count` rows of b, with zeros up to the pitch, to shared memory.
__device__ __forceinline__ void load_window(unsigned char* shared, const Element* b, i64 pitch_b,
                                            int k, int count, int pitch) {
  const int chunks = pitch / 16;
  for (int i = threadIdx.x; i < count * chunks; i += SDDMM_THREADS) {
    const int slot = i / chunks, chunk = i - slot * chunks;
    reinterpret_cast<Chunk*>(shared + slot * pitch)[chunk] = load_chunk<SDDMM_BYTES, SDDMM_WHOLE>(
        b + slot * pitch_b, chunk * static_cast<int>(16 / sizeof(Element)), k);
  }
}

// Nonzeros lie window by window: starts[w] is the first of window w, whose slot s is column
// width * w + s.
struct Arguments {
  const Element *a, *b, *values;
  SDDMM_OUTPUT* out;
  const int *rows, *slots, *order, *starts;
  i64 pitch_a, pitch_b;          // elements from row to row
  i64 head_a, head_b, head_out;  // and from head to head
  int count;                     // nonzeros
  int chunks;                    // blocks a head,
  int chunk;                     // of so many nonzeros each
  int windows, width, n, k;
  double alpha;
};

extern "C" __global__ void __launch_bounds__(SDDMM_THREADS, 1) sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int pass = SDDMM_SEGMENTS * 64 / sizeof(Element), WARPS = SDDMM_THREADS / 32;
  const int passes = p.k > pass ? (p.k + pass - 1) / pass : 1, pitch = passes * SDDMM_SEGMENTS * 64;
  const int head = blockIdx.x / p.chunks, begin = (blockIdx.x - head * p.chunks) * p.chunk;
  const int end = begin + p.chunk < p.count ? begin + p.chunk : p.count;
  const Element *const a = p.a + head * p.head_a, *const b = p.b + head * p.head_b;
  const Result<Element, SDDMM_OUTPUT> result{p.out + head * p.head_out, p.values,
                                             static_cast<Sum<Element>>(p.alpha)};
  int w = 0;
  for (int last = p.windows; last - w > 1;) {
    const int middle = (w + last) / 2;
    if (p.starts[middle] <= begin) {
      w = middle;
    } else {
      last = middle;
    }
  }
  for (; w < p.windows && p.starts[w] < end; ++w) {
    const int from = p.starts[w] > begin ? p.starts[w] : begin;
    const int to = p.starts[w + 1] < end ? p.starts[w + 1] : end;
    if (from >= to) continue;
    __syncthreads();  // everyone has done with the window before
    const int first = w * p.width, slots = p.n - first < p.width ? p.n - first : p.width;
    load_window(shared, b + first * p.pitch_b, p.pitch_b, p.k, slots, pitch);
    __syncthreads();
    constexpr int group = 8 * SDDMM_BATCHES;
    const int each = ((to - from) / WARPS + group) / group * group;
    const int mine = from + threadIdx.x / 32 * each;
    const int mine_end = mine + each < to ? mine + each : to;
    if (mine < mine_end)
      gather<Element, SDDMM_BATCHES, SDDMM_SEGMENTS, SDDMM_SINGLE, SDDMM_SEGMENTS % 2 == 0>(
          RowsA{a, p.pitch_a, p.k}, SharedRows{shared, pitch}, p.rows, p.slots, p.order, mine,
          mine_end, passes, [&](i64 at, Sum<Element> sum) { result.store(at, sum); });
  }
}
