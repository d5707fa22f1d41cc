// SpMM by dense tiles: a block multiplies the tiles of 64 rows of W, or a warp those of 16 or 32, one
// after the other and adds them in registers; adds weights that are loaded by the masks of their lines,
// by 16 bytes where they are neighbours. Limit: the instructions of a tile, however few nonzeros it has.
#include "gemm_core/parameters.cuh"
#include "gemm_core/tile_io.cuh"
#include "sddmm/simt_product.cuh"
#include "sddmm/tile_product.cuh"
#include "sddmm/warp_product.cuh"

using namespace sddmm;

// What spmm_tile/host.py chooses, by macro.
struct Config {
  // The types of X (and of factors), of the values and of the output.
  using Element = SDDMM_ELEMENT;
  using Value = SDDMM_VALUE;
  using Output = SDDMM_OUTPUT;
  // The number of columns of X that a block multiplies.
  static constexpr int COLUMNS = SDDMM_COLUMNS;
  // Whether values are multiplied by factors; whether nonzeros are read through perm; whether the
  // lines of tiles are columns of W.
  static constexpr bool FACTORS = SDDMM_FACTORS, PERMUTED = SDDMM_PERMUTED;
  static constexpr bool BY_COLUMN = SDDMM_BY_COLUMN;
  // How a tile is multiplied: HalfProduct, Tf32Product or SimtProduct of 64 x 64 positions,
  // HalfProduct16 or SimtProduct16 of 16 x 16, or HalfProduct32 of 32 x 32.
  using Product = SDDMM_PRODUCT<Element, COLUMNS, BY_COLUMN>;
  // Whether all rows of X start at multiples of 16 bytes; and whether all tiles are full, of half
  // weights, and their lines do so too.
  static constexpr bool ALIGNED = SDDMM_ALIGNED, FULL = SDDMM_FULL;
  // The number of tiles of X, and of full ones of W, in shared memory; one is multiplied while the
  // others are loaded.
  static constexpr int STAGES = SDDMM_STAGES;
  // The number of threads of a block, and of blocks that the registers of a multiprocessor must
  // hold.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Element = Config::Element;
using W = Weights<Config::Value, Element, Config::FACTORS, Config::PERMUTED>;
using Product = Config::Product;
constexpr int SIDE = Product::SIDE;
using CopyX = gemm_core::TileCopy<Element, Product::LayoutX, SIDE, Config::COLUMNS, Config::THREADS,
                                  true, Config::ALIGNED>;

// A warp loads 16 lines of a tile, some at a time in registers. As many parts of the tile before are
// multiplied meanwhile.
constexpr int WARP_LINES = SIDE * 32 / Config::THREADS;
using Loaded = Product::Lines<W>;
constexpr int PARTS = Product::PARTS, LAST_LINES = WARP_LINES - Loaded::LINES;
static_assert(PARTS * Loaded::LINES == WARP_LINES, "all lines are loaded");
static_assert(Config::THREADS == Product::THREADS, "these multiply a tile");

// Shared memory: two tiles of weights, or the stages of full ones, the stages of X, and a flag.
constexpr int W_BYTES = Product::Tile::BYTES, W_TILES = Config::FULL ? Config::STAGES : 2;
constexpr int X_BYTES = SIDE * Config::COLUMNS * static_cast<int>(sizeof(Element));
constexpr int FLAG_AT = W_TILES * W_BYTES + Config::STAGES * X_BYTES;
static_assert(FLAG_AT + 4 <= Config::SHARED_BYTES, "all of it fits");

struct Arguments {
  const Config::Value* values;
  const Element *factors, *dense;
  Config::Output* out;
  float* partial;       // the sums of parts: of each head, slice of columns, and slot
  const int* perm;      // (nnz,), or null
  const int4* lines;    // of each tile its lines: (first nonzero, mask, 0)
  const int* columns;   // of each tile the first column
  const int4* parts;    // (first tile, last tile + 1, first row, slot of partial or -1)
  i64 head_values, head_dense, pitch_dense;  // elements from head to head, and from row to row
  int part_count, slices, slots, m, n, k;
  double alpha;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// Which part of the product this block computes.
struct Work {
  int head, slice, first_column;
  int4 part;

  __device__ __forceinline__ explicit Work(const Arguments& p) {
    const int index = blockIdx.x / p.slices;
    slice = blockIdx.x - index * p.slices;
    head = index / p.part_count;
    part = p.parts[index - head * p.part_count];
    first_column = slice * Config::COLUMNS;
  }

  // Stores the sum of a row of the part and of a column of the slice.
  __device__ __forceinline__ void store(const Arguments& p, int row, int column, float sum) const {
    if (part.w >= 0) {
      const i64 slot = (static_cast<i64>(head) * p.slices + slice) * p.slots + part.w;
      p.partial[(slot * SIDE + row) * Config::COLUMNS + column] = sum;
    } else if (part.z + row < p.m && first_column + column < p.k) {
      const i64 at = (static_cast<i64>(head) * p.m + part.z + row) * p.k + first_column + column;
      p.out[at] = Narrow<Config::Output>::from(sum * static_cast<float>(p.alpha));
    }
  }
};

// The sum of one entry, nonzero by nonzero: where X is not finite, zeros of a tile would make NaN.
__device__ inline float exact_sum(const Arguments& p, const W& weights, const Work& work, int row,
                                  int column) {
  const Element* const x = p.dense + work.head * p.head_dense + work.first_column + column;
  float sum = 0.f;
  const auto add = [&](int nonzero, int source) {
    sum += weights(nonzero) * widened(x[source * p.pitch_dense]);
  };
  for (i64 tile = work.part.x; tile < work.part.y; ++tile) {
    const int4* const lines = p.lines + tile * SIDE;
    const int first = p.columns[tile];
    if constexpr (Config::BY_COLUMN) {
      for (int c = 0; c < SIDE; ++c) {
        const u32 own = row < 32 ? lines[c].y : lines[c].z, before = own & ((1u << row % 32) - 1);
        if (own >> row % 32 & 1)
          add(lines[c].x + __popc(before) + (row < 32 ? 0 : __popc(lines[c].y)), first + c);
      }
    } else {
      int nonzero = lines[row].x;
      for (int half = 0; half < 2; ++half)
        for (u32 left = half ? lines[row].z : lines[row].y; left != 0; left &= left - 1)
          add(nonzero++, first + 32 * half + __ffs(left) - 1);
    }
  }
  return sum;
}

// Copies full tiles of weights to shared memory, by chunks of 16 bytes.
struct CopyW {
  static constexpr int LINE_CHUNKS = SIDE / 8, CHUNKS = SIDE * LINE_CHUNKS / Config::THREADS;
  int begins[CHUNKS];  // the first nonzero of the line of each of this thread's chunks

  static __device__ __forceinline__ int line(int i) {
    return i * (Config::THREADS / LINE_CHUNKS) + threadIdx.x / LINE_CHUNKS;
  }
  static __device__ __forceinline__ int position() { return threadIdx.x % LINE_CHUNKS * 8; }

  __device__ __forceinline__ void find(const Arguments& p, int tile, int end) {
    if (tile >= end) return;
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i)
      begins[i] = p.lines[static_cast<i64>(tile) * SIDE + line(i)].x;
  }
  __device__ __forceinline__ void copy(const W& weights, u32 target) const {
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i)
      ptx::cp_async_16(target + Product::Tile::offset(line(i), position()),
                       weights.values + begins[i] + position());
  }
};

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const Work work(p);
  const int warp_line = threadIdx.x / 32 * WARP_LINES, own_line = threadIdx.x % WARP_LINES;
  const W weights{p.values + work.head * p.head_values, p.factors, p.perm};
  const int end = work.part.y;
  int& is_wrong = *reinterpret_cast<int*>(shared + FLAG_AT);
  if (threadIdx.x == 0) is_wrong = 0;

  // X, tile by tile.
  const Element* const x = p.dense + work.head * p.head_dense + work.first_column;
  CopyX copy(x, p.pitch_dense, p.k - work.first_column, threadIdx.x);
  const auto copy_x = [&](int first, int stage) {
    const int target = W_TILES * W_BYTES + stage * X_BYTES;
    copy.tile = reinterpret_cast<const unsigned char*>(x + first * p.pitch_dense);
    if (copy.is_full(p.n - first)) {
      copy.template copy_full<1>(ptx::shared_address(shared) + target, 0);
    } else {
      copy.copy_guarded(shared, target, p.n - first);
    }
  };
  const auto line_of = [&](int tile) {
    return tile < end ? p.lines[static_cast<i64>(tile) * SIDE + warp_line + own_line]
                      : int4{0, 0, 0, 0};
  };
  const auto column_of = [&](int tile) { return tile < end ? p.columns[tile] : -1; };

  typename Product::Accumulators sums = {};
  const auto multiply = [&](int buffer, int stage, int part) {
    Product::add(sums, shared + buffer * W_BYTES, shared + W_TILES * W_BYTES + stage * X_BYTES, part);
  };
  int tile = work.part.x;
  if constexpr (Config::FULL) {
    const u32 first_w = ptx::shared_address(shared);
    CopyW next;
#pragma unroll
    for (int ahead = 0; ahead < Config::STAGES - 1; ++ahead) {
      next.find(p, tile + ahead, end);
      const int first = column_of(tile + ahead);
      if (first >= 0) next.copy(weights, first_w + ahead * W_BYTES), copy_x(first, ahead);
      ptx::cp_async_commit();
    }
    next.find(p, tile + Config::STAGES - 1, end);
    int next_column = column_of(tile + Config::STAGES - 1);
    for (int stage = 0; tile < end; ++tile) {
      ptx::cp_async_wait<Config::STAGES - 2>();
      __syncthreads();  // the tile is there; and all have multiplied the one before
      const int free_stage = stage == 0 ? Config::STAGES - 1 : stage - 1;
      if (next_column >= 0) {
        next.copy(weights, first_w + free_stage * W_BYTES);
        copy_x(next_column, free_stage);
      }
      ptx::cp_async_commit();
      next.find(p, tile + Config::STAGES, end);
      next_column = column_of(tile + Config::STAGES);
#pragma unroll
      for (int part = 0; part < PARTS; ++part) multiply(stage, stage, part);
      stage = stage == Config::STAGES - 1 ? 0 : stage + 1;
    }
  } else {
    Loaded loaded;
    int4 next_line = line_of(tile + 1);
    WarpLines lines(line_of(tile));
#pragma unroll
    for (int ahead = 0; ahead < Config::STAGES - 1; ++ahead) {
      const int first = column_of(tile + ahead);
      if (first >= 0) copy_x(first, ahead);
      ptx::cp_async_commit();
    }
    int next_column = column_of(tile + Config::STAGES - 1);
    const auto store = [&](int buffer, int line) {
      loaded.template store<Product::Tile>(weights, shared + buffer * W_BYTES, warp_line + line);
    };
#pragma unroll 1
    for (int line = 0; line < LAST_LINES; line += Loaded::LINES) {
      loaded.load(weights, lines, line);
      store(0, line);
    }
    loaded.load(weights, lines, LAST_LINES);
    for (int stage = 0, buffer = 0; tile < end; ++tile) {
      store(buffer, LAST_LINES);
      const bool has_next = tile + 1 < end;
      if (has_next) {
        lines = WarpLines(next_line);
        next_line = line_of(tile + 2);
        loaded.load(weights, lines, 0);
      }
      ptx::cp_async_wait<Config::STAGES - 2>();
      __syncthreads();  // the tile is there; and all have multiplied the one before
      const int free_stage = stage == 0 ? Config::STAGES - 1 : stage - 1;
      if (next_column >= 0) copy_x(next_column, free_stage);
      ptx::cp_async_commit();
      next_column = column_of(tile + Config::STAGES);
#pragma unroll 1
      for (int part = 0; part < PARTS; ++part) {
        multiply(buffer, stage, part);
        if (part < PARTS - 1 && has_next) {
          store(buffer ^ 1, part * Loaded::LINES);
          loaded.load(weights, lines, (part + 1) * Loaded::LINES);
        }
      }
      stage = stage == Config::STAGES - 1 ? 0 : stage + 1;
      buffer ^= 1;
    }
  }

  // Zeros times what is not finite are NaN: finite sums have met none.
  Product::merge(sums, shared);
  float zero = 0.f;
  Product::for_each(sums, [&](int, int, float sum) { zero += 0.f * sum; });
  if (zero != 0.f) is_wrong = 1;
  __syncthreads();
  if (is_wrong) {
#pragma unroll 1
    for (int i = threadIdx.x; i < SIDE * Config::COLUMNS; i += Config::THREADS) {
      const int row = i / Config::COLUMNS, column = i % Config::COLUMNS;
      if (work.part.z + row < p.m && work.first_column + column < p.k)
        work.store(p, row, column, exact_sum(p, weights, work, row, column));
    }
    return;
  }
  Product::for_each(sums,
                    [&](int row, int column, float sum) { work.store(p, row, column, sum); });
}
