// What a warp does of attention with a tile of ROWS x 64 positions, of which it has 16 or 32 rows: copies
// of operands, the products with the rows of a tile by mma.sync, and which positions hold nonzeros.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/ldmatrix.cuh"
#include "gemm_core/ptx/mma.cuh"
#include "gemm_core/swizzle.cuh"
#include "gemm_core/tile_io.cuh"
#include "sddmm/softmax_sum.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

namespace fragment = gemm_core::fragment;
namespace ptx = gemm_core::ptx;

// The columns of a tile, and the rows of a product by mma.sync.
constexpr int SIDE = 64, MMA_ROWS = 16;

// Rows of COLUMNS elements in shared memory, and this thread's part of their copies from rows of k
// elements. ALIGNED: every row starts at a multiple of 16 bytes; else see copy_unaligned_chunk.
template <class T, int COLUMNS, int THREADS, bool ALIGNED, class Layout_>
struct OperandRows {
  using Layout = Layout_;
  // The elements of a chunk of 16 bytes, and the chunks of a row.
  static constexpr int ELEMENTS = 16 / static_cast<int>(sizeof(T)), CHUNKS = COLUMNS / ELEMENTS;
  static constexpr int ROW_BYTES = Layout::ROW_BYTES;
  // The rows that a block copies at once, each thread a chunk of them.
  static constexpr int STEP = THREADS / CHUNKS;
  static_assert(THREADS % CHUNKS == 0 && STEP % Layout::PERIOD == 0, "a thread's chunks lie alike");

  const T* rows;
  i64 pitch;  // elements from row to row
  int k;

  // Copies ROWS rows from row `first` on, of `count` in all; what does not exist becomes zeros.
  template <int ROWS>
  __device__ __forceinline__ void copy(unsigned char* target, int first, int count) const {
    static_assert(ROWS % STEP == 0, "no thread is left out");
    const u32 thread = threadIdx.x;
    const int row = static_cast<int>(thread / CHUNKS), chunk = static_cast<int>(thread % CHUNKS);
    unsigned char* const to = target + Layout::offset(row, chunk);
    const T* source = rows + (first + row) * pitch + chunk * ELEMENTS;
    if (ALIGNED && first + ROWS <= count && k == COLUMNS) {
#pragma unroll
      for (int i = 0; i < ROWS; i += STEP, source += STEP * pitch)
        ptx::cp_async_16(ptx::shared_address(to) + i * ROW_BYTES, source);
      return;
    }
    const int left = k - chunk * ELEMENTS;
    const int in_row = left < 0 ? 0 : left < ELEMENTS ? left : ELEMENTS;
#pragma unroll 1
    for (int i = 0; i < ROWS; i += STEP, source += STEP * pitch) {
      const int elements = first + i + row < count ? in_row : 0;
      if constexpr (ALIGNED) {
        ptx::cp_async_16(ptx::shared_address(to) + i * ROW_BYTES, source,
                         elements * static_cast<int>(sizeof(T)));
      } else {
        gemm_core::copy_unaligned_chunk(to + i * ROW_BYTES, source, elements);
      }
    }
  }
};

// Rows of halves, as ldmatrix loads them.
template <class T, int COLUMNS, int THREADS, bool ALIGNED>
using HalfRows = OperandRows<T, COLUMNS, THREADS, ALIGNED, gemm_core::Swizzle<COLUMNS / 8>>;

// Where in a warp's products a lane's elements are. Of each block of rows and each group of columns it
// has four: element e is in row e / 2 of two, ROW_STEP apart, and in column e % 2 of two, COLUMN_STEP
// apart. at(e): its position in the first block and group. Lanes that share their rows differ in the
// bits ROW_LANES alone. Here as mma_c.
struct MmaLanes {
  static constexpr int BLOCK_ROWS = MMA_ROWS, ROW_STEP = 8, GROUP_COLUMNS = 8, COLUMN_STEP = 1;
  static constexpr u32 ROW_LANES = 3;
  static __device__ __forceinline__ fragment::Position at(int e) {
    return fragment::mma_c(threadIdx.x % 32, e);
  }
};

// Calls use(block, j, e) for all elements that a lane has.
template <int BLOCKS, int GROUPS, class Use>
__device__ __forceinline__ void each_element(const float (&)[BLOCKS][GROUPS][4], const Use& use) {
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
    for (int j = 0; j < GROUPS; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) use(block, j, e);
}

// products += rows of the first operand times those of the second, which lie in shared memory, in
// `Rows`, from row `first` of `others` on. load_own(a, block, step): the fragment of the first
// operand of block `block` of 16 rows, in columns 16 step and on.
template <class T, class Rows, int BLOCKS, int EIGHTS, class LoadOwn>
__device__ __forceinline__ void multiply_rows(float (&products)[BLOCKS][EIGHTS][4],
                                              const LoadOwn& load_own, const unsigned char* others,
                                              int first) {
  const fragment::Position own = fragment::ldmatrix_b(threadIdx.x % 32);
  const u32 base = ptx::shared_address(others) + first * Rows::ROW_BYTES;
#pragma unroll
  for (int step = 0; step < Rows::CHUNKS / 2; ++step) {
    u32 a[BLOCKS][4];
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) load_own(a[block], block, step);
#pragma unroll
    for (int j = 0; j < EIGHTS; j += 2) {
      u32 b[4];
      ptx::ldmatrix_x4(b, base + Rows::Layout::offset(8 * j + own.row, 2 * step + own.column / 8));
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block) {
        ptx::mma_m16n8k16(products[block][j], a[block], b[0], b[1], T{});
        ptx::mma_m16n8k16(products[block][j + 1], a[block], b[2], b[3], T{});
      }
    }
  }
}

// The fragment of 16 rows from `row` on in shared memory, in `Rows`.
template <class Rows>
__device__ __forceinline__ void load_fragment(u32 (&a)[4], const unsigned char* rows, int row,
                                              int step) {
  const fragment::Position own = fragment::ldmatrix_a(threadIdx.x % 32);
  ptx::ldmatrix_x4(a, ptx::shared_address(rows) +
                          Rows::Layout::offset(row + own.row, 2 * step + own.column / 8));
}

// sums += weights V. weights: rounded to halves. values: the rows of V in shared memory, in `Rows`;
// the first of them is that of the weights' first column.
template <class T, class Rows, int BLOCKS, int EIGHTS, int VALUE_EIGHTS>
__device__ __forceinline__ void multiply_values(float (&sums)[BLOCKS][VALUE_EIGHTS][4],
                                                const float (&weights)[BLOCKS][EIGHTS][4],
                                                const unsigned char* values, int first) {
  const fragment::Position own = fragment::ldmatrix_a(threadIdx.x % 32);
  const u32 base = ptx::shared_address(values) + first * Rows::ROW_BYTES;
#pragma unroll
  for (int step = 0; step < EIGHTS / 2; ++step) {
    using N = Numeric<T>;
    u32 a[BLOCKS][4];
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&part)[4] = weights[block][2 * step + i / 2];
        a[block][i] = N::pair(part[i % 2 * 2], part[i % 2 * 2 + 1]);
      }
#pragma unroll
    for (int j = 0; j < VALUE_EIGHTS; j += 2) {
      u32 b[4];
      ptx::ldmatrix_x4_trans(
          b, base + Rows::Layout::offset(16 * step + own.row, j + own.column / 8));
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block) {
        ptx::mma_m16n8k16(sums[block][j], a[block], b[0], b[1], T{});
        ptx::mma_m16n8k16(sums[block][j + 1], a[block], b[2], b[3], T{});
      }
    }
  }
}

// What is known of a tile before its masks: its first column, and for each 32 rows whether nonzeros
// are at all of their positions, or at none.
struct TilePlace {
  int first_column;
  u32 flags;  // bits 0 to 15: full; bits 16 to 31: empty

  __device__ __forceinline__ bool is_full(int row) const { return flags >> row / 32 & 1; }
  __device__ __forceinline__ bool is_empty(int row) const { return flags >> (16 + row / 32) & 1; }
  template <int ROWS>
  __device__ __forceinline__ bool all_full() const {
    constexpr u32 ALL = (1u << ROWS / 32) - 1;
    return (flags & ALL) == ALL;
  }
};
static_assert(sizeof(TilePlace) == 8, "an int2 of tiles.py");

// The places of two tiles and the masks of two in shared memory, where they arrive with the rows of
// the tile before and of the tile.
template <int ROWS>
struct TileMasks {
  static constexpr int MASK_BYTES = ROWS * 8, BYTES = 2 * MASK_BYTES + 16;
  unsigned char* shared;
  const TilePlace* places;
  const int2* masks;

  __device__ __forceinline__ const int2* of(int stage) const {
    return reinterpret_cast<const int2*>(shared + stage * MASK_BYTES);
  }
  __device__ __forceinline__ TilePlace place(int stage) const {
    return reinterpret_cast<const TilePlace*>(shared + 2 * MASK_BYTES)[stage];
  }
  __device__ __forceinline__ void copy_place(int tile, int stage) const {
    if (threadIdx.x < 2)
      ptx::cp_async_4(
          ptx::shared_address(shared) + 2 * MASK_BYTES + stage * 8 + threadIdx.x * 4,
          reinterpret_cast<const u32*>(places + tile) + threadIdx.x);
  }
  __device__ __forceinline__ void copy(int tile, int stage) const {
    if (threadIdx.x < ROWS / 2)
      ptx::cp_async_16(ptx::shared_address(shared) + stage * MASK_BYTES + threadIdx.x * 16,
                       masks + static_cast<i64>(tile) * ROWS + threadIdx.x * 2);
  }
};

// The numbers of the nonzeros of a tile. lines: {first nonzero, low and high word of the mask, 0} of
// each of its rows, or, if BY_COLUMN, of the 64 columns of each 64 rows.
template <bool BY_COLUMN>
struct TileNumbers {
  const int4* lines;

  __device__ __forceinline__ int of(int row, int column) const {
    const int4 line = lines[BY_COLUMN ? row / SIDE * SIDE + column : row];
    const int bit = BY_COLUMN ? row % SIDE : column;
    const u32 before = (1u << bit % 32) - 1;
    return line.x + (bit < 32 ? __popc(line.y & before) : __popc(line.y) + __popc(line.z & before));
  }
};

// A warp's rows of a tile: which of a lane's elements are nonzeros.
template <int BLOCKS, int GROUPS, int ROWS, bool BY_COLUMN, class Lanes = MmaLanes>
struct WarpTile {
  using Products = float[BLOCKS][GROUPS][4];
  int warp_row;
  bool is_full;
  const int2* masks;  // of the warp's rows, in shared memory; not there if `is_full`
  const int4* lines;

  // Calls use(block, j, e, exists) for the elements of the columns from `first` on. The masks are
  // shifted to a lane's columns once, so that each element has its own constant bit.
  template <class Use>
  __device__ __forceinline__ void each(int first, const Use& use) const {
    const fragment::Position own = Lanes::at(0);
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int2 row =
            is_full ? int2{-1, -1} : masks[Lanes::BLOCK_ROWS * block + Lanes::ROW_STEP * r + own.row];
#pragma unroll
        for (int j = 0; j < GROUPS; ++j) {
          const int group = Lanes::GROUP_COLUMNS * j;
          const int word = first + group < 32 ? row.x : row.y;
          const u32 bits = static_cast<u32>(word) >> (first % 32 + own.column);
#pragma unroll
          for (int e = 0; e < 2; ++e)
            use(block, j, 2 * r + e, (bits >> (group % 32 + Lanes::COLUMN_STEP * e) & 1) != 0);
        }
      }
  }
  // Calls use(block, j, e, nonzero), with the nonzero's number, for those that exist.
  template <class Use>
  __device__ __forceinline__ void each_nonzero(int first, const Use& use) const {
    const TileNumbers<BY_COLUMN> numbers{lines};
    each(first, [&](int block, int j, int e, bool exists) {
      const fragment::Position at = Lanes::at(e);
      if (exists)
        use(block, j, e,
            numbers.of(warp_row + Lanes::BLOCK_ROWS * block + at.row,
                       first + Lanes::GROUP_COLUMNS * j + at.column));
    });
  }
};

}  // namespace sddmm
