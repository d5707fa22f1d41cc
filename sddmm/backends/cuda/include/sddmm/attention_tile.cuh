// What a warp does of attention with a tile of 64 x 64 positions: its 16 rows of scores by mma.sync,
// their softmax, and the product with V.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/ldmatrix.cuh"
#include "gemm_core/ptx/mma.cuh"
#include "gemm_core/swizzle.cuh"
#include "sddmm/softmax_sum.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

namespace fragment = gemm_core::fragment;
namespace ptx = gemm_core::ptx;

// The rows and columns of a tile, and those of it that a warp has.
constexpr int SIDE = 64, WARP_ROWS = 16;

// 64 rows of COLUMNS halves in shared memory.
template <class T, int COLUMNS, int THREADS, bool ALIGNED>
struct HalfRows {
  static constexpr int CHUNKS = COLUMNS / 8, BYTES = SIDE * COLUMNS * 2;
  using Layout = gemm_core::Swizzle<CHUNKS>;

  // Copies rows of k elements, `rows` of which exist; all else becomes zeros. ALIGNED: every row
  // starts at a multiple of 16 bytes; then the copy is asynchronous.
  static __device__ __forceinline__ void copy(unsigned char* target, const T* from, i64 pitch,
                                              int rows, int k) {
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < SIDE * CHUNKS; i += THREADS) {
      const int row = i / CHUNKS, chunk = i % CHUNKS, left = k - chunk * 8;
      const int elements = row >= rows || left < 0 ? 0 : left < 8 ? left : 8;
      unsigned char* const to = target + Layout::offset(row, chunk);
      const T* const source = from + (elements > 0 ? row * pitch + chunk * 8 : 0);
      if constexpr (ALIGNED) {
        ptx::cp_async_16(ptx::shared_address(to), source, elements * 2);
      } else {
#pragma unroll 1
        for (int e = 0; e < 8; ++e) reinterpret_cast<T*>(to)[e] = e < elements ? source[e] : T{};
      }
    }
  }
};

// The scores of a warp's 16 rows with 64 columns: element e of block j is that of mma_c in columns
// 8 j and on. A lane so has the two rows lane / 4 and lane / 4 + 8, and 16 columns of each.
using Scores = float[SIDE / 8][4];

// q: the warp's rows of Q as fragments. keys: 64 rows of K in shared memory, in `Rows`.
template <class T, class Rows, int STEPS>
__device__ __forceinline__ void multiply_keys(Scores& scores, const u32 (&q)[STEPS][4],
                                              const unsigned char* keys) {
  const fragment::Position own = fragment::ldmatrix_b(threadIdx.x % 32);
  const u32 base = ptx::shared_address(keys);
#pragma unroll
  for (int step = 0; step < STEPS; ++step)
#pragma unroll
    for (int j = 0; j < SIDE / 8; j += 2) {
      u32 b[4];
      ptx::ldmatrix_x4(b, base + Rows::Layout::offset(8 * j + own.row, 2 * step + own.column / 8));
      ptx::mma_m16n8k16(scores[j], q[step], b[0], b[1], T{});
      ptx::mma_m16n8k16(scores[j + 1], q[step], b[2], b[3], T{});
    }
}

// The same, with the warp's rows of the first operand in shared memory, in `Rows` too: `own` is that
// of row 0, and the warp's first row is `warp_row`.
template <class T, class Rows>
__device__ __forceinline__ void multiply_rows(Scores& products, const unsigned char* own,
                                              int warp_row, const unsigned char* others) {
  const fragment::Position a_row = fragment::ldmatrix_a(threadIdx.x % 32);
  const fragment::Position b_row = fragment::ldmatrix_b(threadIdx.x % 32);
  const u32 own_base = ptx::shared_address(own), base = ptx::shared_address(others);
#pragma unroll
  for (int step = 0; step < Rows::CHUNKS / 2; ++step) {
    u32 a[4];
    ptx::ldmatrix_x4(
        a, own_base + Rows::Layout::offset(warp_row + a_row.row, 2 * step + a_row.column / 8));
#pragma unroll
    for (int j = 0; j < SIDE / 8; j += 2) {
      u32 b[4];
      ptx::ldmatrix_x4(
          b, base + Rows::Layout::offset(8 * j + b_row.row, 2 * step + b_row.column / 8));
      ptx::mma_m16n8k16(products[j], a, b[0], b[1], T{});
      ptx::mma_m16n8k16(products[j + 1], a, b[2], b[3], T{});
    }
  }
}

// sums += weights V. weights: rounded to halves. values: 64 rows of V in shared memory, in `Rows`.
template <class T, class Rows, int BLOCKS>
__device__ __forceinline__ void multiply_values(float (&sums)[BLOCKS][4], const Scores& weights,
                                                const unsigned char* values) {
  const fragment::Position own = fragment::ldmatrix_a(threadIdx.x % 32);
  const u32 base = ptx::shared_address(values);
#pragma unroll
  for (int step = 0; step < SIDE / 16; ++step) {
    const float(&left)[4] = weights[2 * step];
    const float(&right)[4] = weights[2 * step + 1];
    using N = Numeric<T>;
    const u32 a[4] = {N::pair(left[0], left[1]), N::pair(left[2], left[3]),
                      N::pair(right[0], right[1]), N::pair(right[2], right[3])};
#pragma unroll
    for (int j = 0; j < BLOCKS; j += 2) {
      u32 b[4];
      ptx::ldmatrix_x4_trans(
          b, base + Rows::Layout::offset(16 * step + own.row, j + own.column / 8));
      ptx::mma_m16n8k16(sums[j], a, b[0], b[1], T{});
      ptx::mma_m16n8k16(sums[j + 1], a, b[2], b[3], T{});
    }
  }
}

// The nonzeros of a tile. lines: {first nonzero, low and high word of the mask, 0} of each of its
// rows, or of its columns if BY_COLUMN.
template <bool BY_COLUMN>
struct TileNonzeros {
  const int4* lines;

  // Calls use(exists, nonzero) of the position at this row and column of the tile. nonzero: its
  // number, if it exists.
  __device__ __forceinline__ bool exists(int row, int column) const {
    const int4 line = lines[BY_COLUMN ? column : row];
    const int bit = BY_COLUMN ? row : column;
    return static_cast<u32>(bit < 32 ? line.y : line.z) >> bit % 32 & 1;
  }
  __device__ __forceinline__ int number(int row, int column) const {
    const int4 line = lines[BY_COLUMN ? column : row];
    const int bit = BY_COLUMN ? row : column;
    const u32 before = (1u << bit % 32) - 1;
    return line.x + (bit < 32 ? __popc(line.y & before) : __popc(line.y) + __popc(line.z & before));
  }
};

}  // namespace sddmm
