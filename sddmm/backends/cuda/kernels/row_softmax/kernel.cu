// Softmax over each row's nonzeros, or its gradient p * (g - sum p g); adds to row_gather that a block
// owns the rows that begin in its share of nonzeros. Longer rows are cut; a second launch merges
// the parts in a fixed order. Limit: memory, by two loads and a store per value (a gradient: four).
#include "gemm_core/parameters.cuh"
#include "sddmm/value.cuh"
#include "sddmm/warp.cuh"

using namespace sddmm;

// What row_softmax/host.py chooses, by macro.
struct Config {
  // The type of the values.
  using Element = SDDMM_ELEMENT;
  // Whether the gradient is computed, and whether this launch merges the parts of cut rows.
  static constexpr bool BACKWARD = SDDMM_BACKWARD, MERGES = SDDMM_MERGES;
  // The number of nonzeros of a share: a longer row is cut where shares end.
  static constexpr int SHARE = SDDMM_SHARE;
  // The number of threads of a block, and of bytes of its shared memory.
  static constexpr int THREADS = SDDMM_THREADS, SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Element = Config::Element;
using S = Sum<Element>;
constexpr int THREADS = Config::THREADS, SHARE = Config::SHARE, WARPS = THREADS / 32;
// The number of nonzeros of a share that a thread loads, all of them at once.
constexpr int ITEMS = SHARE / THREADS;
static_assert(SHARE % THREADS == 0, "threads have equal numbers of nonzeros");
// The number of nonzeros up to which a lane computes a row with as few other lanes as suit the mean
// row. All lanes of a warp share a longer one.
constexpr int MAX_ROW_PER_LANE = 32;
// The number of nonzeros that a lane computes at once; exponentials of doubles need the registers.
constexpr int UNROLLED = sizeof(S) == 8 ? 1 : 4;

// What is known of the nonzeros of a row, or of a part of it: their largest value, and the sum of
// exp(value - largest). Of a gradient, 0 and the sum of p * g.
struct Statistics {
  S largest, sum;
};

// Nonzeros are numbered by row: number i is at position perm[i] of the arrays, or at i if perm is
// null. starts[r]: the first nonzero of the r-th row that has any; the last entry is their number.
// share_rows[s]: the first row that begins at nonzero s * SHARE or later; the last entry is the
// number of rows.
struct Arguments {
  const Element *x, *g;  // values; for the gradient p, and the gradient of p
  Element* out;
  const int *starts, *share_rows, *perm;
  // Two for each share of each head: of a row from an earlier share, and of one into a later.
  Statistics* parts;
  i64 head_x, head_g, head_out, shares;  // elements from head to head; the number of shares
  int heads;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }
__device__ __forceinline__ S minus_infinity() { return -static_cast<S>(__uint_as_float(0x7f800000)); }

// Entry i of the array in shared memory: rows of 16 or 32 nonzeros begin in different banks.
__device__ __forceinline__ int padded(int i) { return i + i / 32; }
constexpr int STAGED = 2 * SHARE + 2 * SHARE / 32;
static_assert((STAGED + WARPS) * sizeof(S) <= Config::SHARED_BYTES, "the launch allocates these");

// The nonzeros of one head.
struct Values {
  const Element *x, *g;
  Element* out;
  const int* perm;

  __device__ __forceinline__ i64 position(int i) const { return perm == nullptr ? i : perm[i]; }
  // What is reduced of nonzero i.
  __device__ __forceinline__ S load(int i) const {
    const i64 at = position(i);
    if constexpr (Config::BACKWARD) return widened(x[at]) * widened(g[at]);
    return widened(x[at]);
  }
  // Stores the result of a nonzero from its own probability, or from its row's sum of a gradient.
  __device__ __forceinline__ void store(int i, S result) const {
    const i64 at = position(i);
    if constexpr (Config::BACKWARD) result = widened(x[at]) * (widened(g[at]) - result);
    out[at] = Narrow<Element>::from(result);
  }
};

// The largest x, or the sum, over `lanes` neighbouring lanes, a power of two.
template <bool LARGEST>
__device__ __forceinline__ S reduce_lanes(S x, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    const S other = __shfl_xor_sync(FULL_MASK, x, distance);
    x = LARGEST ? larger(x, other) : x + other;
  }
  return x;
}

// The same over the block; `warps`: one word per warp in shared memory.
template <bool LARGEST>
__device__ __forceinline__ S reduce_block(S x, S* warps) {
  x = reduce_lanes<LARGEST>(x, 32);
  __syncthreads();  // all have read what the last reduction left
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = warps[0];
  for (int w = 1; w < WARPS; ++w) x = LARGEST ? larger(x, warps[w]) : x + warps[w];
  return x;
}

// Where exponents are taken relative to: to a row that has only -inf so far exp(-inf - 0) adds 0,
// while exp(-inf + inf) would be NaN.
__device__ __forceinline__ S finite_base(S largest) {
  return largest == minus_infinity() ? static_cast<S>(0) : largest;
}

// The statistics of at most SHARE nonzeros, by the whole block.
__device__ __forceinline__ Statistics reduce_part(const Values& values, int begin, int end,
                                                  S* warps) {
  S x[ITEMS];
  S largest = minus_infinity(), sum = 0;
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const int i = begin + j * THREADS + static_cast<int>(threadIdx.x);
    x[j] = i < end ? values.load(i) : (Config::BACKWARD ? static_cast<S>(0) : minus_infinity());
    largest = larger(largest, x[j]);
  }
  if constexpr (Config::BACKWARD) {
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) sum += x[j];
    return {0, reduce_block<false>(sum, warps)};
  }
  largest = reduce_block<true>(largest, warps);
  const S base = finite_base(largest);
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) sum += exponential(x[j] - base);
  return {largest, reduce_block<false>(sum, warps)};
}

// The statistics of a cut row, from its parts: that of its first share, and those of all later.
__device__ __forceinline__ Statistics merge_parts(const Statistics* parts, int begin, int end,
                                                  S* warps) {
  const int first = begin / SHARE, last = (end - 1) / SHARE;
  auto part = [&](int w) { return parts[2 * static_cast<i64>(w) + (w == first ? 1 : 0)]; };
  S largest = minus_infinity(), sum = 0;
  if constexpr (!Config::BACKWARD) {
    for (int w = first + static_cast<int>(threadIdx.x); w <= last; w += THREADS)
      largest = larger(largest, part(w).largest);
    largest = reduce_block<true>(largest, warps);
  }
  const S base = finite_base(largest);
  for (int w = first + static_cast<int>(threadIdx.x); w <= last; w += THREADS) {
    const Statistics of = part(w);
    sum += Config::BACKWARD ? of.sum : of.sum * exponential(of.largest - base);
  }
  return {largest, reduce_block<false>(sum, warps)};
}

// Stores the results of a part of a row whose statistics are complete.
__device__ __forceinline__ void store_part(const Values& values, int begin, int end,
                                           const Statistics& row) {
  const S scale = 1 / row.sum;
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const int i = begin + j * THREADS + static_cast<int>(threadIdx.x);
    if (i >= end) continue;
    values.store(i, Config::BACKWARD ? row.sum
                                     : exponential(values.load(i) - row.largest) * scale);
  }
}

// Replaces the staged values of a row by what Values::store takes. `lanes` lanes share the row.
__device__ __forceinline__ void finish_row(S* staged, int begin, int end, int lanes) {
  const int first = begin + static_cast<int>(threadIdx.x) % lanes;
  S largest = minus_infinity(), sum = 0;
  if constexpr (!Config::BACKWARD) {
#pragma unroll UNROLLED
    for (int i = first; i < end; i += lanes) largest = larger(largest, staged[padded(i)]);
    largest = reduce_lanes<true>(largest, lanes);
  }
#pragma unroll UNROLLED
  for (int i = first; i < end; i += lanes) {
    S& x = staged[padded(i)];
    if constexpr (!Config::BACKWARD) x = exponential(x - largest);
    sum += x;
  }
  sum = reduce_lanes<false>(sum, lanes);
  const S scale = 1 / sum;
#pragma unroll UNROLLED
  for (int i = first; i < end; i += lanes) {
    S& x = staged[padded(i)];
    x = Config::BACKWARD ? sum : x * scale;
  }
}

// Computes `rows` whole rows, whose nonzeros are begin .. end - 1, fewer than 2 * SHARE.
__device__ __forceinline__ void compute_rows(const Values& values, const int* starts, int rows,
                                             int begin, int end, S* staged) {
  const int count = end - begin, thread = static_cast<int>(threadIdx.x);
  for (int base = thread; base - thread < count; base += SHARE) {
    S x[ITEMS];
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) {
      const int i = base + j * THREADS;
      x[j] = i < count ? values.load(begin + i) : static_cast<S>(0);
    }
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) {
      const int i = base + j * THREADS;
      if (i < count) staged[padded(i)] = x[j];
    }
  }
  __syncthreads();

  // Lanes per row: a lane so has up to eight nonzeros of a row of mean length.
  int lanes = 1;
  while (lanes < 32 && lanes * 8 * rows < count) lanes *= 2;
  const int first_of_warp = thread / 32 * 32 / lanes, step = THREADS / lanes;
  for (int base = first_of_warp; base < rows; base += step) {
    const int row = base - first_of_warp + thread / lanes;
    const int from = row < rows ? starts[row] - begin : 0;
    const int to = row < rows ? starts[row + 1] - begin : 0;
    const bool is_long = to - from > MAX_ROW_PER_LANE * lanes;
    for (u32 pending = __ballot_sync(FULL_MASK, is_long && thread % lanes == 0); pending != 0;
         pending &= pending - 1) {
      const int owner = __ffs(pending) - 1;
      const int long_from = __shfl_sync(FULL_MASK, from, owner);
      finish_row(staged, long_from, __shfl_sync(FULL_MASK, to, owner), 32);
    }
    finish_row(staged, from, is_long ? from : to, lanes);
  }
  __syncthreads();

#pragma unroll 4
  for (int i = thread; i < count; i += THREADS) values.store(begin + i, staged[padded(i)]);
}

// A block computes one share of one head.
extern "C" __global__ void __launch_bounds__(THREADS) sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  S* const staged = reinterpret_cast<S*>(shared);
  S* const warps = staged + STAGED;
  const int share = static_cast<int>(blockIdx.x) / p.heads;
  const int head = static_cast<int>(blockIdx.x) % p.heads;
  const Values values{p.x + head * p.head_x, p.g + head * p.head_g, p.out + head * p.head_out,
                      p.perm};
  Statistics* const parts = p.parts + 2 * head * p.shares;

  // The rows that begin in this share; only the last of them, and the one before, may be cut.
  const int share_begin = share * SHARE, share_end = share_begin + SHARE;
  const int first = p.share_rows[share], last = p.share_rows[share + 1];
  const int begin = p.starts[first], end = p.starts[last];
  const int end_of_whole = last > first ? p.starts[last - 1] : end;
  const bool last_is_cut = end - end_of_whole > SHARE;
  const int before = first > 0 && begin > share_begin ? p.starts[first - 1] : begin;
  const bool before_is_cut = begin - before > SHARE;

  if constexpr (Config::MERGES) {
    if (before_is_cut)
      store_part(values, share_begin, begin < share_end ? begin : share_end,
                 merge_parts(parts, before, begin, warps));
    if (last_is_cut)
      store_part(values, end_of_whole, share_end,
                 merge_parts(parts, end_of_whole, end, warps));
  } else {
    if (before_is_cut) {
      const Statistics part =
          reduce_part(values, share_begin, begin < share_end ? begin : share_end, warps);
      if (threadIdx.x == 0) parts[2 * static_cast<i64>(share)] = part;
    }
    if (last_is_cut) {
      const Statistics part = reduce_part(values, end_of_whole, share_end, warps);
      if (threadIdx.x == 0) parts[2 * static_cast<i64>(share) + 1] = part;
    }
    compute_rows(values, p.starts + first, last - first - last_is_cut, begin,
                 last_is_cut ? end_of_whole : end, staged);
  }
}
