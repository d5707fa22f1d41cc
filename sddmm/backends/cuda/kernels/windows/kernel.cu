// SDDMM by windows of columns: adds to row_gather that a block keeps a slice of the rows of B of one
// window in shared memory, and that two nonzeros of one row of A share the loads of that row.
// Limit: the rate of L1 and shared memory, two rows of B and one of A per pair of nonzeros.
#include "gemm_core/parameters.cuh"
#include "sddmm/gather.cuh"
#include "sddmm/pair_dot.cuh"
#include "sddmm/window_rows.cuh"

using namespace sddmm;

// What windows/host.py chooses, by macro.
struct Config {
  // The types of the operands and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of bytes of one load; all rows start and end at multiples of it: 2, 4, 8 or 16.
  static constexpr int LOAD_BYTES = SDDMM_LOAD_BYTES;
  // Whether rows end where a slice ends, so that no load needs a guard. Else the last slice has them.
  static constexpr bool NO_TAIL = SDDMM_NO_TAIL;
  // The number of bytes of a slice of a row, and whether rows have several.
  static constexpr int SLICE_BYTES = SDDMM_SLICE_BYTES;
  static constexpr bool SLICED = SDDMM_SLICED;
  // The number of threads of a block, of which a multiprocessor holds one.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of pairs that a block computes in the time in which it loads a window.
  static constexpr int WINDOW_PAIRS = SDDMM_WINDOW_PAIRS;
};

using Element = Config::Element;
// Rows of A: of a slice that all rows reach the end of, or not.
template <bool NO_TAIL>
using RowsA = GlobalRows<Element, Config::LOAD_BYTES, NO_TAIL>;
constexpr int SLICE_ELEMENTS = Config::SLICE_BYTES / sizeof(Element);
constexpr int STEPS = Config::SLICE_BYTES / (LANES_PER_NONZERO * 16);
static_assert(Config::SLICE_BYTES % 128 == 0, "rows of shared memory start at the first bank");
// Whether a warp loads rows of A a batch ahead. Small loads need the registers, as do guarded ones
// where there are partial sums too.
template <bool NO_TAIL>
constexpr bool PREFETCH =
    Config::LOAD_BYTES == 16 && (Config::NO_TAIL || !Config::SLICED || sizeof(Element) == 2 ||
                                 (NO_TAIL && sizeof(Element) == 4));
// The number of steps whose loads the compiler may order as it likes: floats leave registers for
// more of them, unless loads are guarded.
template <bool NO_TAIL>
constexpr int STEPS_IN_FLIGHT = NO_TAIL && sizeof(Element) == 4 ? 8 : 2;

// Two nonzeros of one row: their slots in the window, 16 bits each. A nonzero without a mate makes a
// pair with itself.
struct alignas(8) Pair {
  int row;
  u32 slots;
};

// Pairs are sorted by window: window_pairs[w] is the first of window w. Slot s of window w is column
// window_columns[w] + s. positions[2 * i] and the next are the positions of the nonzeros of pair i in
// the output, the second -1 if there is but one. Windows of the same rows are a band: band_windows[i]
// is the first of band i. A pair is one unit of work, and each window has WINDOW_PAIRS units before its
// pairs. In a turn all blocks compute one slice of k after the other of a band of heads_per_turn heads, in
// shares of consecutive units; if that is several heads, there is one band.
struct Arguments {
  const Element *a, *b, *values;
  Config::Output* out;
  const Pair* pairs;
  const int *positions, *window_pairs, *window_columns, *band_windows;
  Sum<Element>* partial_sums;    // two per unit of work; null unless SLICED
  i64 pitch_a, pitch_b;          // elements from row to row
  i64 head_a, head_b, head_out;  // elements from head to head
  i64 work_per_head;
  int heads, heads_per_turn, bands, turns, slices, window_count, window_width, n, k;
  double alpha;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// The first unit of the work of one head that belongs to this window.
__device__ __forceinline__ i64 first_unit(const Arguments& p, int window) {
  return p.window_pairs[window] + static_cast<i64>(Config::WINDOW_PAIRS) * window;
}

// The window that holds this unit of the work of one head.
__device__ __forceinline__ int find_window(const Arguments& p, i64 unit) {
  int window = 0;
  for (int last = p.window_count; last - window > 1;) {
    const int middle = (window + last) / 2;
    if (first_unit(p, middle) <= unit) {
      window = middle;
    } else {
      last = middle;
    }
  }
  return window;
}

// Consecutive pairs of a window, and where their sums go: to `result`, or to `partial` while other
// slices of k follow. Each thread adds to the partial sums that it has written itself.
struct Work {
  const Pair* pairs;
  const int* positions;
  int begin, end;
  Result<Element, Config::Output> result;
  Sum<Element>* partial;  // of the first nonzero of pair 0
  bool first_slice, last_slice;

  // Past the end the last pair is loaded again and not stored.
  __device__ __forceinline__ Pair load(int i) const { return pairs[i < end ? i : end - 1]; }
  __device__ __forceinline__ bool adds() const { return Config::SLICED && !first_slice; }
  __device__ __forceinline__ bool stores() const { return !Config::SLICED || last_slice; }
};

// Where the sum that a lane holds goes, loaded ahead of the products: its position a batch before, then
// what it depends on.
struct Destination {
  int position;  // -1 for none
  Sum<Element> so_far;
  Element weight;

  static __device__ __forceinline__ i64 index(int pair) {
    return 2 * static_cast<i64>(pair) + PairDot<Element>::nonzero();
  }
  __device__ __forceinline__ void load(const Work& work, int pair) {
    position = -1;
    if (!PairDot<Element>::holds_sum() || pair >= work.end) return;
    position = work.stores() ? work.positions[index(pair)] : 0;
  }
  __device__ __forceinline__ void load_factors(const Work& work, int pair) {
    so_far = 0;
    if (position < 0) return;
    if (work.adds()) so_far = work.partial[index(pair)];
    if (work.stores() && work.result.values != nullptr)
      weight = load_read_only(work.result.values + position);
  }
  __device__ __forceinline__ void store(const Work& work, int pair, Sum<Element> sum) const {
    if (position < 0) return;
    if (work.stores()) {
      work.result.store(position, sum + so_far, weight);
    } else {
      work.partial[index(pair)] = sum + so_far;
    }
  }
};

// Computes the pairs work.begin .. work.end - 1. The warps of the block take turns, a batch each.
// `shared`: where start() begins to load the rows of B of the window. The first pairs and their rows of A
// are loaded meanwhile.
template <bool NO_TAIL, class Start>
__device__ __forceinline__ void compute_pairs(const Work& work, const RowsA<NO_TAIL>& rows_a,
                                              const unsigned char* shared, const Start& start) {
  using Row = typename RowsA<NO_TAIL>::Row;
  constexpr int STRIDE = Config::THREADS / 32 * BATCH_PAIRS;
  const int lane = threadIdx.x % 32, g = lane / LANES_PER_NONZERO, t = lane % LANES_PER_NONZERO;
  // The lane's chunks of the first two steps; those of later steps follow at equal distances. Odd
  // pairs load the two in the opposite order. Shared memory serves eight lanes at once, two pairs;
  // they so fall into different banks.
  const int swizzle = g % 2 * LANES_PER_NONZERO;
  const int starts[2] = {t + swizzle, t + LANES_PER_NONZERO - swizzle};
  auto chunk_of = [](int s) { return LANES_PER_NONZERO * (s - s % 2); };
  auto rows_of = [&](int i, Row (&rows)[2]) {
    const Row row = rows_a.row(i);
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int first = starts[odd] * CHUNK_ELEMENTS<Element>;
      rows[odd] = {row.elements + first, row.k - first};
      // The compiler would otherwise keep the guards of all steps in registers.
      if constexpr (!NO_TAIL) asm volatile("" : "+r"(rows[odd].k));
    }
  };

  __syncthreads();  // all warps have read the last window
  start();
  int number = work.begin + static_cast<int>(threadIdx.x) / 32 * BATCH_PAIRS + g;
  Pair pair = work.load(number), next = work.load(number + STRIDE);
  Destination next_destination;
  next_destination.load(work, number);
  Chunk a[STEPS];
  if constexpr (PREFETCH<NO_TAIL>) {
    Row rows[2];
    rows_of(pair.row, rows);
#pragma unroll
    for (int s = 0; s < STEPS; ++s) a[s] = rows[s % 2].load(chunk_of(s));
  }
  gemm_core::ptx::cp_async_wait<0>();
  __syncthreads();

#pragma unroll 1
  for (; number - g < work.end; number += STRIDE) {
    const Pair after_next = work.load(number + 2 * STRIDE);
    Destination destination = next_destination;
    destination.load_factors(work, number);
    next_destination.load(work, number + STRIDE);
    const unsigned char* const b_rows[2] = {shared + (pair.slots & 0xffff) * Config::SLICE_BYTES,
                                            shared + (pair.slots >> 16) * Config::SLICE_BYTES};
    auto load_b = [&](int i, int s) {
      return reinterpret_cast<const Chunk*>(b_rows[i] + starts[s % 2] * 16)[chunk_of(s)];
    };
    Row rows[2];
    rows_of(PREFETCH<NO_TAIL> ? next.row : pair.row, rows);
    PairDot<Element> dot;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      if constexpr (!PREFETCH<NO_TAIL>) a[s] = rows[s % 2].load(chunk_of(s));
      dot.add(s, load_b(0, s), load_b(1, s), a[s]);
      // For the next batch: the registers are free now.
      if constexpr (PREFETCH<NO_TAIL>) a[s] = rows[s % 2].load(chunk_of(s));
      // Else the compiler delays the prefetch until the chunk is needed, or keeps chunks of too many
      // steps in registers.
      if ((s + 1) % STEPS_IN_FLIGHT<NO_TAIL> == 0) __syncwarp();
    }
    destination.store(work, number, dot.finish());
    pair = next, next = after_next;
  }
}

// The units of the work of all heads that a block computes in a turn: the last `count` before `end`.
// They are fewer than 2^31, as no memory holds the results of as many.
struct Units {
  i64 end;
  int count;
};

__device__ __forceinline__ Units share_of_block(const Arguments& p, int turn) {
  const int band = turn % p.bands, head = turn / p.bands * p.heads_per_turn;
  const i64 begin = head * p.work_per_head + first_unit(p, p.band_windows[band]);
  const i64 last_head = (head + p.heads_per_turn - 1) * p.work_per_head;
  const i64 end = last_head + first_unit(p, p.band_windows[band + 1]);
  const i64 share = (end - begin + gridDim.x - 1) / gridDim.x, own = begin + blockIdx.x * share;
  const i64 own_end = own + share < end ? own + share : end;
  return {own_end, static_cast<int>(own < own_end ? own_end - own : 0)};
}

// Computes one slice of k, which begins at k_begin. `shared`: room for a window.
__device__ __forceinline__ void compute_slice(const Arguments& p, const Units& units, int k_begin,
                                              unsigned char* shared) {
  for (int left = units.count; left > 0;) {
    // The part of a window that this block computes.
    const i64 unit = units.end - left;
    const int head = static_cast<int>(unit / p.work_per_head);
    const i64 head_unit = head * p.work_per_head;
    const int w = find_window(p, unit - head_unit);
    const int from = p.window_pairs[w], to = p.window_pairs[w + 1];
    const i64 pairs_unit = head_unit + static_cast<i64>(Config::WINDOW_PAIRS) * (w + 1);
    const int begin = unit - pairs_unit > from ? static_cast<int>(unit - pairs_unit) : from;
    const int end = units.end - pairs_unit < to ? static_cast<int>(units.end - pairs_unit) : to;
    left = units.end - pairs_unit > to ? static_cast<int>(units.end - pairs_unit - to) : 0;
    if (begin >= end) continue;

    const int first = p.window_columns[w];
    const int slots = p.n - first < p.window_width ? p.n - first : p.window_width;
    const Element* const a = p.a + head * p.head_a + k_begin;
    const Element* const b = p.b + head * p.head_b + first * p.pitch_b + k_begin;
    const Work work{p.pairs, p.positions, begin, end,
                    {p.out + head * p.head_out, p.values, static_cast<Sum<Element>>(p.alpha)},
                    p.partial_sums + 2 * pairs_unit, k_begin == 0,
                    p.k - k_begin <= SLICE_ELEMENTS};
    auto compute = [&](auto no_tail) {
      constexpr bool NO_TAIL = decltype(no_tail)::VALUE;
      compute_pairs(work, RowsA<NO_TAIL>{a, p.pitch_a, p.k - k_begin}, shared, [&] {
        start_window<Config::SLICE_BYTES, Config::THREADS, Config::LOAD_BYTES, NO_TAIL>(
            shared, b, p.pitch_b, p.k - k_begin, slots);
      });
    };
    if constexpr (Config::NO_TAIL) {
      compute(Bool<true>{});
    } else if (Config::SLICED && Config::LOAD_BYTES == 16 && !work.last_slice) {
      compute(Bool<true>{});
    } else {
      compute(Bool<false>{});
    }
  }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, 1)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(128) unsigned char shared[];
  // Blocks so work on the same slice of the same rows at about the same time: it stays in L2. A block
  // finds its share anew for each slice, as the pairs leave no registers to keep it.
  for (int step = 0; step < p.turns * p.slices; ++step)
    compute_slice(p, share_of_block(p, step / p.slices), step % p.slices * SLICE_ELEMENTS, shared);
}
