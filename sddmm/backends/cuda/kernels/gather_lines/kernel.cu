// SDDMM by gathering a line at a time: differs from row_gather in that a warp loads 128 bytes of the rows
// of all its nonzeros before the next 128. All warps of a multiprocessor so read the same few lines of
// rows at about the same time, and find in L1 what another has loaded. Limit: L2, and latency.
#include "gemm_core/parameters.cuh"
#include "sddmm/gather.cuh"
#include "sddmm/gather_arguments.cuh"

using namespace sddmm;

// What gather_lines/host.py chooses, by macro.
struct Config {
  // The types of the operands, of four or eight bytes, and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of nonzeros of each eight lanes, which load a line; past the end there are fewer.
  static constexpr int NONZEROS = SDDMM_NONZEROS;
  // Whether rows end where a line ends, so that no load needs a guard.
  static constexpr bool NO_TAIL = SDDMM_NO_TAIL;
  // The number of threads of a block, and of blocks that the registers of a multiprocessor must
  // hold.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
};

using Element = Config::Element;
constexpr int NONZEROS = Config::NONZEROS;
using Arguments = GatherArguments<Element, Config::Output>;
GEMM_CORE_CHECK_STRUCT(Arguments)

// A line, the lanes that load one, how many such groups of lanes a warp has, and the elements of a line.
constexpr int LINE_BYTES = 128, LANES = LINE_BYTES / 16, GROUPS = 32 / LANES;
constexpr int LINE_ELEMENTS = LINE_BYTES / sizeof(Element);
static_assert(NONZEROS <= LANES, "a lane holds an index and stores a sum");
constexpr __device__ int min_of(int x, int y) { return x < y ? x : y; }

// As ClampedRows, of rows that begin at multiples of a chunk, `pitch` chunks apart: a place in them then
// takes 32 bits, where an address takes two registers.
struct Rows {
  const Element* first;
  u32 pitch, last;

  __device__ __forceinline__ Rows(const Element* first, i64 pitch, int count)
      : first(first), pitch(static_cast<u32>(pitch / CHUNK_ELEMENTS<Element>)), last(count - 1) {}
  // The chunks before row i, which the host has made sure are fewer than 2^32.
  __device__ __forceinline__ u32 chunks_before(int i) const {
    return (static_cast<u32>(i) < last ? i : last) * pitch;
  }
  __device__ __forceinline__ Chunk load(u32 at) const {
    return reinterpret_cast<const Chunk*>(first)[at];
  }
};

// Consecutive nonzeros of a head, which a warp computes; there are none if there is no such head.
struct WarpShare {
  i64 head, begin, end;

  // thread: its number in the block.
  __device__ __forceinline__ WarpShare(const Arguments& p, int thread) {
    const i64 warp = static_cast<i64>(blockIdx.x) * (Config::THREADS / 32) + thread / 32;
    head = p.head_of(warp), begin = p.begin_of(warp, head), end = p.end_of(begin);
  }
};

// The nonzero whose sum a lane gets: number lane / GROUPS of group lane % GROUPS.
struct Summed {
  bool exists;
  i64 position;

  __device__ __forceinline__ Summed(const Arguments& p, const WarpShare& share, int lane) {
    position = share.begin + lane % GROUPS * NONZEROS + lane / GROUPS;
    exists = lane / GROUPS < NONZEROS && position < share.end;
    if (exists && p.perm != nullptr) position = p.perm[position];
  }
};

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  const WarpShare own(p, threadIdx.x);
  if (own.head >= p.heads) return;
  // The nonzeros of a group of lanes are consecutive.
  const int lane = threadIdx.x % 32, group = lane / LANES, t = lane % LANES;

  if (p.values != nullptr) {
    const Summed summed(p, own, lane);
    if (summed.exists) p.result_of(own.head).prefetch(summed.position);
  }

  // Each lane of a group loads the indices of one of its nonzeros. Past the end the last is loaded
  // again, and not stored.
  const i64 of_lane = own.begin + group * NONZEROS + t;
  const i64 indexed = of_lane < own.end ? of_lane : own.end - 1;
  const int index_row = p.rows[indexed], index_column = p.cols[indexed];
  auto of_nonzero = [&](int index, int j) {
    return __shfl_sync(FULL_MASK, index, group * LANES + j);
  };
  // Whether a nonzero is of another row than the first of its group, one bit for each; and whether one
  // of the warp is of neither the first row nor the last of its group.
  const int first_row = of_nonzero(index_row, 0), last_row = of_nonzero(index_row, NONZEROS - 1);
  const bool differs = t < NONZEROS && index_row != first_row;
  const u32 is_of_last_row = __ballot_sync(FULL_MASK, differs) >> group * LANES;
  const bool every_row = __any_sync(FULL_MASK, differs && index_row != last_row);

  Rows rows_a(p.a + own.head * p.head_a, p.pitch_a, p.m);
  Rows rows_b(p.b + own.head * p.head_b, p.pitch_b, p.n);
  u32 chunk_of_b[NONZEROS];  // the chunks before this lane's in a row of B
#pragma unroll
  for (int j = 0; j < NONZEROS; ++j)
    chunk_of_b[j] = t + rows_b.chunks_before(of_nonzero(index_column, j));

  RowDot<Element, LANES> dot;
  auto add_lines = [&](auto every) {
    constexpr bool EVERY_ROW = decltype(every)::VALUE;
    // The nonzeros whose loads are in flight together, as registers allow.
    constexpr int BATCH = min_of(NONZEROS, EVERY_ROW ? 2 : 6);
    const bool ends_in_tail = p.k % LINE_ELEMENTS > t * CHUNK_ELEMENTS<Element>;
    const u32 first = t + rows_a.chunks_before(first_row), last = t + rows_a.chunks_before(last_row);
#pragma unroll 1
    for (int line = (p.k - 1) / LINE_ELEMENTS + 1; line > 0; --line) {
      const bool exists = Config::NO_TAIL || line > 1 || ends_in_tail;
      Chunk ends[2]{};
      if (!EVERY_ROW && exists) ends[0] = rows_a.load(first), ends[1] = rows_a.load(last);
#pragma unroll
      for (int begin = 0; begin < NONZEROS; begin += BATCH) {
        Chunk a[BATCH]{}, b[BATCH][1]{};
#pragma unroll
        for (int j = begin; j < min_of(begin + BATCH, NONZEROS); ++j) {
          const u32 row = EVERY_ROW ? t + rows_a.chunks_before(of_nonzero(index_row, j)) : 0;
          if (exists) {
            b[j - begin][0] = rows_b.load(chunk_of_b[j]);
            if (EVERY_ROW) a[j - begin] = rows_a.load(row);
          }
        }
#pragma unroll
        for (int j = begin; j < min_of(begin + BATCH, NONZEROS); ++j) {
          const Chunk of_a[1]{EVERY_ROW ? a[j - begin] : is_of_last_row >> j & 1 ? ends[1] : ends[0]};
          dot.add(j, b[j - begin], of_a);
        }
      }
      rows_a.first += LINE_ELEMENTS, rows_b.first += LINE_ELEMENTS;
    }
  };
  if (every_row) {
    add_lines(Bool<true>{});
  } else {
    add_lines(Bool<false>{});
  }

  Sum<Element> sum = sum_of_lane<LANES>(dot);
  // Found anew, as keeping it over the loop would cost registers; asm hides that it is the same.
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  const WarpShare share(p, thread);
  const Summed summed(p, share, thread % 32);
  if (!summed.exists) return;
  if (p.partial_sums != nullptr) sum += p.partial_sums[share.head * p.head_out + summed.position];
  p.result_of(share.head).store(summed.position, sum);
}
