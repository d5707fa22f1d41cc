// Softmax over each row's nonzeros, or its gradient p * (g - sum p g): a block stages its share in
// shared memory, where as many lanes as suit the mean row hold a row in registers. Longer rows are
// cut; a second launch merges their parts in a fixed order. Limit: memory, and instructions.
#include "gemm_core/parameters.cuh"
#include "gemm_core/ptx/rcp.cuh"
#include "sddmm/softmax_share.cuh"
#include "sddmm/value.cuh"
#include "sddmm/warp.cuh"

using namespace sddmm;

// What row_softmax/host.py chooses, by macro.
struct Config {
  // The type of the values.
  using Element = SDDMM_ELEMENT;
  // Whether the gradient is computed, and whether this launch merges the parts of cut rows.
  static constexpr bool BACKWARD = SDDMM_BACKWARD, MERGES = SDDMM_MERGES;
  // Whether the nonzeros are stored in another order than row by row.
  static constexpr bool PERMUTED = SDDMM_PERMUTED;
  // The number of nonzeros of a share: a longer row is cut where shares end. The number of those of
  // a row that a lane holds in registers.
  static constexpr int SHARE = SDDMM_SHARE, ITEMS = SDDMM_ITEMS;
  // The number of threads of a block, and of bytes of its shared memory.
  static constexpr int THREADS = SDDMM_THREADS, SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Element = Config::Element;
using S = Sum<Element>;
constexpr bool BACKWARD = Config::BACKWARD;
constexpr int THREADS = Config::THREADS, SHARE = Config::SHARE, WARPS = THREADS / 32;
// A lane loads its nonzeros by steps of so many, until all rows of the warp end.
constexpr int ITEMS = Config::ITEMS, STEP_ITEMS = ITEMS / 4;
// The number of nonzeros that a thread loads or stores at once.
constexpr int BATCH = 8;

// What is known of the nonzeros of a row, or of a part of it: their largest value, and the sum of
// exp(value - largest). Of a gradient, 0 and the sum of p * g.
struct Statistics {
  S largest, sum;
};

// Nonzeros are numbered by row: number i is at position perm[i] of the arrays, or at i unless
// PERMUTED. starts[r]: the first nonzero of the r-th row that has any; the last entry is the number
// of nonzeros.
struct Arguments {
  const Element *x, *g;  // values; for the gradient p, and the gradient of p
  Element* out;
  const int *starts, *perm;
  const SoftmaxShare* shares;
  // Two for each share of each head: of the row from an earlier share, and of that into a later.
  Statistics* parts;
  i64 head_x, head_g, head_out, share_count;  // elements from head to head; the number of shares
  int heads;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float reciprocal(float x) { return gemm_core::ptx::rcp(x); }
__device__ __forceinline__ double reciprocal(double x) { return 1 / x; }
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }
__device__ __forceinline__ S minus_infinity() {
  return -static_cast<S>(__uint_as_float(0x7f800000));
}

// The nonzeros of one head.
struct Values {
  const Element *x, *g;
  Element* out;
  const int* perm;

  __device__ __forceinline__ i64 position(int i) const { return Config::PERMUTED ? perm[i] : i; }
  // Stores the result of nonzero i, if it is before the end of its row.
  __device__ __forceinline__ void store(int i, int end, S result) const {
    if (i < end) out[position(i)] = Narrow<Element>::from(result);
  }
};

// Entry i of the staged values: rows of 16 or 32 nonzeros begin in different banks.
__device__ __forceinline__ u32 padded(u32 i) { return i + i / 32; }
constexpr int STAGED = 2 * SHARE + 2 * SHARE / 32;
static_assert((STAGED + WARPS) * sizeof(S) <= Config::SHARED_BYTES, "the launch allocates these");

// COUNT nonzeros of a lane. Those past the end of their row change neither its largest value nor
// its sum.
template <int COUNT>
struct Items {
  S x[COUNT], g[BACKWARD ? COUNT : 1];

  __device__ __forceinline__ void load(int j, const Values& values, int i, int end) {
    x[j] = absent();
    if constexpr (BACKWARD) g[j] = 0;
    if (i < end) {
      const i64 at = values.position(i);
      x[j] = widened(values.x[at]);
      if constexpr (BACKWARD) g[j] = widened(values.g[at]);
    }
  }
  static __device__ __forceinline__ S absent() {
    return BACKWARD ? static_cast<S>(0) : minus_infinity();
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

// Adds COUNT nonzeros of a lane to its statistics.
template <int COUNT>
__device__ __forceinline__ void add(Statistics& lane, const Items<COUNT>& items) {
  if constexpr (BACKWARD) {
#pragma unroll
    for (int j = 0; j < COUNT; ++j) lane.sum += items.x[j] * items.g[j];
  } else {
    S largest = lane.largest;
#pragma unroll
    for (int j = 0; j < COUNT; ++j) largest = larger(largest, items.x[j]);
    const S base = finite_base(largest);
    lane.sum *= exponential(lane.largest - base);
#pragma unroll
    for (int j = 0; j < COUNT; ++j) lane.sum += exponential(items.x[j] - base);
    lane.largest = largest;
  }
}

// What a lane without nonzeros knows.
__device__ __forceinline__ Statistics nothing() {
  return {BACKWARD ? static_cast<S>(0) : minus_infinity(), 0};
}

// The statistics of one lane's nonzeros begin, begin + stride, ... before `end`.
__device__ __forceinline__ Statistics scan_lane(const Values& values, int begin, int end,
                                                int stride) {
  Statistics lane = nothing();
#pragma unroll 1
  for (int i = begin; i < end; i += STEP_ITEMS * 2 * stride) {
    Items<STEP_ITEMS * 2> items;
#pragma unroll
    for (int j = 0; j < STEP_ITEMS * 2; ++j) items.load(j, values, i + j * stride, end);
    add(lane, items);
  }
  return lane;
}

// Stores the results of the same nonzeros, from the statistics of their row.
__device__ __forceinline__ void store_lane(const Values& values, int begin, int end, int stride,
                                           const Statistics& row) {
  const S scale = reciprocal(row.sum);
#pragma unroll 1
  for (int i = begin; i < end; i += STEP_ITEMS * stride) {
    Items<STEP_ITEMS> items;
#pragma unroll
    for (int j = 0; j < STEP_ITEMS; ++j) items.load(j, values, i + j * stride, end);
#pragma unroll
    for (int j = 0; j < STEP_ITEMS; ++j) {
      S result;
      if constexpr (BACKWARD) {
        result = items.x[j] * (items.g[j] - row.sum);
      } else {
        result = exponential(items.x[j] - row.largest) * scale;
      }
      values.store(i + j * stride, end, result);
    }
  }
}

// The statistics of all lanes of the block together.
__device__ __forceinline__ Statistics merge_block(const Statistics& lane, S* warps) {
  if constexpr (BACKWARD) {
    return {0, reduce_block<false>(lane.sum, warps)};
  } else {
    const S largest = reduce_block<true>(lane.largest, warps);
    const S sum = lane.sum * exponential(lane.largest - finite_base(largest));
    return {largest, reduce_block<false>(sum, warps)};
  }
}

// The statistics of a cut row, from its parts: that of its first share, and those of all later.
__device__ __forceinline__ Statistics merge_parts(const Statistics* parts, int begin, int end,
                                                  S* warps) {
  const int first = begin / SHARE, last = (end - 1) / SHARE;
  Statistics lane = nothing();
#pragma unroll STEP_ITEMS
  for (int s = first + static_cast<int>(threadIdx.x); s <= last; s += THREADS) {
    const Statistics part = parts[2 * static_cast<i64>(s) + (s == first ? 1 : 0)];
    if constexpr (BACKWARD) {
      lane.sum += part.sum;
    } else {
      const S largest = larger(lane.largest, part.largest), base = finite_base(largest);
      lane.sum = lane.sum * exponential(lane.largest - base) +
                 part.sum * exponential(part.largest - base);
      lane.largest = largest;
    }
  }
  return merge_block(lane, warps);
}

// Replaces the staged values of a row of any length by what `store_results` takes. All lanes of a
// warp share the row.
__device__ __forceinline__ void finish_long_row(S* staged, int begin, int end) {
  const int first = begin + static_cast<int>(threadIdx.x) % 32;
  Statistics row = nothing();
  if constexpr (!BACKWARD) {
    for (int i = first; i < end; i += 32) row.largest = larger(row.largest, staged[padded(i)]);
    row.largest = reduce_lanes<true>(row.largest, 32);
  }
  for (int i = first; i < end; i += 32) {
    S& x = staged[padded(i)];
    if constexpr (!BACKWARD) x = exponential(x - row.largest);
    row.sum += x;
  }
  row.sum = reduce_lanes<false>(row.sum, 32);
  const S scale = reciprocal(row.sum);
  for (int i = first; i < end; i += 32) {
    S& x = staged[padded(i)];
    x = BACKWARD ? row.sum : x * scale;
  }
}

// The same of a row of at most ITEMS * lanes nonzeros, which `lanes` lanes hold in registers. Each
// group of lanes of the warp has its own row.
__device__ __forceinline__ void finish_row(S* staged, int begin, int end, int lanes) {
  const int first = begin + static_cast<int>(threadIdx.x) % lanes;
  // Calls use(j, i) for the nonzeros j of this lane by steps, until all rows of the warp end.
  auto for_items = [&](auto use) {
#pragma unroll
    for (int step = 0; step < ITEMS; step += STEP_ITEMS) {
      if (!__any_sync(FULL_MASK, end - begin > step * lanes)) break;
#pragma unroll
      for (int j = step; j < step + STEP_ITEMS; ++j) use(j, first + j * lanes);
    }
  };
  S x[ITEMS], largest = minus_infinity(), sum = 0;
  for_items([&](int j, int i) {
    x[j] = i < end ? staged[padded(i)] : Items<1>::absent();
    if constexpr (BACKWARD) {
      sum += x[j];
    } else {
      largest = larger(largest, x[j]);
    }
  });
  if constexpr (!BACKWARD) {
    largest = reduce_lanes<true>(largest, lanes);
    for_items([&](int j, int) { sum += x[j] = exponential(x[j] - largest); });
  }
  sum = reduce_lanes<false>(sum, lanes);
  const S scale = reciprocal(sum);
  for_items([&](int j, int i) {
    if (i < end) staged[padded(i)] = BACKWARD ? sum : x[j] * scale;
  });
}

// Stages `count` nonzeros from `begin` on, all of them of whole rows.
__device__ __forceinline__ void stage(const Values& values, S* staged, int begin, int count) {
  for (int base = static_cast<int>(threadIdx.x); base < count; base += BATCH * THREADS) {
    Items<BATCH> items;
#pragma unroll
    for (int j = 0; j < BATCH; ++j)
      items.load(j, values, begin + base + j * THREADS, begin + count);
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      const int i = base + j * THREADS;
      if constexpr (BACKWARD) items.x[j] *= items.g[j];
      if (i < count) staged[padded(i)] = items.x[j];
    }
  }
}

// Stores the results of the same nonzeros: their staged probabilities, or their gradients by the
// staged sums of their rows.
__device__ __forceinline__ void store_results(const Values& values, const S* staged, int begin,
                                              int count) {
  for (int base = static_cast<int>(threadIdx.x); base < count; base += BATCH * THREADS) {
    Items<BATCH> items;
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      if constexpr (BACKWARD) items.load(j, values, begin + base + j * THREADS, begin + count);
    }
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      const int i = base + j * THREADS;
      if (i >= count) continue;
      S result = staged[padded(i)];
      if constexpr (BACKWARD) result = items.x[j] * (items.g[j] - result);
      values.store(begin + i, begin + count, result);
    }
  }
}

// Computes the whole rows of a share, which have fewer than 2 * SHARE nonzeros.
__device__ __forceinline__ void compute_rows(const Values& values, const SoftmaxShare& share,
                                             const int* starts, S* staged) {
  // Lanes per row: nearly all rows fit, if they are as different in length as chance makes them.
  const float mean = static_cast<float>(share.count) / static_cast<float>(share.rows);
  const float most = mean + 2 * sqrtf(mean);
  int lanes = 1;
  while (lanes < 32 && static_cast<float>(lanes * ITEMS) < most) lanes *= 2;
  const int thread = static_cast<int>(threadIdx.x), first_of_warp = thread / 32 * 32 / lanes;
  const int* const row_starts = starts + share.first;
  int row = thread / lanes, from = 0, to = 0;
  auto load_row = [&] {
    from = row < share.rows ? row_starts[row] - share.begin : 0;
    to = row < share.rows ? row_starts[row + 1] - share.begin : 0;
  };
  load_row();  // while the nonzeros arrive
  stage(values, staged, share.begin, share.count);
  __syncthreads();
#pragma unroll 1
  for (int base = first_of_warp; base < share.rows; base += THREADS / lanes) {
    const bool is_long = to - from > ITEMS * lanes;
    finish_row(staged, from, is_long ? from : to, lanes);
#pragma unroll 1
    for (u32 pending = __ballot_sync(FULL_MASK, is_long && thread % lanes == 0); pending != 0;
         pending &= pending - 1) {
      const int owner = __ffs(pending) - 1;
      const int long_from = __shfl_sync(FULL_MASK, from, owner);
      finish_long_row(staged, long_from, __shfl_sync(FULL_MASK, to, owner));
    }
    row += THREADS / lanes;
    load_row();
  }
  __syncthreads();
  store_results(values, staged, share.begin, share.count);
}

// A block computes one share of one head.
extern "C" __global__ void __launch_bounds__(THREADS, 1) sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  S* const staged = reinterpret_cast<S*>(shared);
  S* const warps = staged + STAGED;
  const int number = static_cast<int>(blockIdx.x) / p.heads;
  const int head = static_cast<int>(blockIdx.x) % p.heads;
  const SoftmaxShare share = p.shares[number];
  const Values values{p.x + head * p.head_x, p.g + head * p.head_g, p.out + head * p.head_out,
                      p.perm};
  Statistics* const parts = p.parts + 2 * head * p.share_count;

  // Calls use(part, row_begin, row_end, from, to) for the part from .. to - 1 of each cut row.
  const int share_begin = number * SHARE, share_end = share_begin + SHARE;
  auto for_cut_rows = [&](auto use) {
    if (share.before_begin < share.before_end)
      use(0, share.before_begin, share.before_end, share_begin,
          share.before_end < share_end ? share.before_end : share_end);
    if (share.last_begin < share.last_end)
      use(1, share.last_begin, share.last_end, share.last_begin, share_end);
  };
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (Config::MERGES) {
    for_cut_rows([&](int, int row_begin, int row_end, int from, int to) {
      const Statistics row = merge_parts(parts, row_begin, row_end, warps);
      store_lane(values, from + thread, to, THREADS, row);
    });
  } else {
    for_cut_rows([&](int part, int, int, int from, int to) {
      const Statistics all = merge_block(scan_lane(values, from + thread, to, THREADS), warps);
      if (thread == 0) parts[2 * static_cast<i64>(number) + part] = all;
    });
    if (share.rows > 0) compute_rows(values, share, p.starts, staged);
  }
}
