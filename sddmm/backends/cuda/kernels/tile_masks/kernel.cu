// Turns the range of nonzeros of each row of each listed tile into its first nonzero and a mask of
// the columns that hold one: adds what lets an epilogue store without reading columns. Rows are 32
// columns wide at most. Limit: the bytes of the columns, read once.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"

using gemm_core::i64;
using gemm_core::u32;

// What tile_masks/host.py chooses, by macro.
struct Config {
  // The number of threads of a block, each of which reads one row of one tile.
  static constexpr int THREADS = SDDMM_THREADS;
};

struct Arguments {
  const int* cols;
  const int2* tiles;   // (tile row, tile column) of each listed tile
  const int2* bounds;  // the range of the nonzeros of each row of each tile
  int2* rows;          // output: (first nonzero, mask) of each row
  i64 row_count;
  int block_m, block_n;  // the number of rows and of columns of a tile
};
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  const i64 i = static_cast<i64>(blockIdx.x) * Config::THREADS + threadIdx.x;
  if (i >= p.row_count) return;
  const int2 range = p.bounds[i];
  const int first_column = p.tiles[i / p.block_m].y * p.block_n;
  u32 mask = 0;
  for (int nonzero = range.x; nonzero < range.y; ++nonzero)
    mask |= 1u << (p.cols[nonzero] - first_column);
  p.rows[i] = make_int2(range.x, static_cast<int>(mask));
}
