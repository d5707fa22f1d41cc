// Turns the range of nonzeros of each line of each listed tile into its first nonzero and a mask of
// the positions, up to 64, that hold one: adds what lets a kernel load weights without their indices.
// Limit: the bytes of the indices, read once.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"

using gemm_core::i64;
using gemm_core::u32;

// What tile_lines/host.py chooses, by macro.
struct Config {
  // The number of threads of a block, each of which reads one line.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of lines of a tile, and of positions of each.
  static constexpr int SIDE = SDDMM_SIDE;
};
constexpr int SIDE = Config::SIDE;
static_assert(SIDE == 64 || SIDE <= 32, "a full line has whole words or a part of one");

struct Arguments {
  const int* indices;  // the position across its line of each nonzero, in the matrix; they ascend
  const int2* tiles;   // (tile along, tile across) of each listed tile
  const int2* bounds;  // the range of the nonzeros of each line of each tile
  int4* lines;         // output: (first nonzero, low and high word of the mask, 0)
  i64 line_count;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  const i64 i = static_cast<i64>(blockIdx.x) * Config::THREADS + threadIdx.x;
  if (i >= p.line_count) return;
  const int2 range = p.bounds[i];
  const int first = p.tiles[i / SIDE].y * SIDE;
  u32 low = 0, high = 0;
  if (range.y - range.x == SIDE) {
    low = SIDE < 32 ? (1u << SIDE % 32) - 1 : 0xffffffff;
    high = SIDE < 64 ? 0 : 0xffffffff;
  } else {
    for (int nonzero = range.x; nonzero < range.y; ++nonzero) {
      const int position = p.indices[nonzero] - first;
      if (position < 32) {
        low |= 1u << position;
      } else {
        high |= 1u << (position - 32);
      }
    }
  }
  p.lines[i] = int4{range.x, static_cast<int>(low), static_cast<int>(high), 0};
}
