// Finds where the nonzeros of each row of each listed tile begin and end: a binary search in a row
// of CSR with ascending columns, then a short search from there. Limit: the latency of some twenty
// dependent loads, which many threads hide.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"

using gemm_core::i64;

// What tile_bounds/host.py chooses, by macro.
struct Config {
  // The number of threads of a block, each of which searches one row of one tile.
  static constexpr int THREADS = SDDMM_THREADS;
};

// The first of cols[from .. to) that is not below `column`.
__device__ __forceinline__ int lower_bound(const int* cols, int from, int to, int column) {
  while (from < to) {
    const int middle = from + (to - from) / 2;
    if (cols[middle] < column) {
      from = middle + 1;
    } else {
      to = middle;
    }
  }
  return from;
}

// As lower_bound, where the answer is near `from`: steps that double bracket it first.
__device__ __forceinline__ int near_lower_bound(const int* cols, int from, int to, int column) {
  i64 step = 4;
  while (step < to - from && cols[from + step - 1] < column) from += step, step *= 2;
  return lower_bound(cols, from, step < to - from ? from + static_cast<int>(step) : to, column);
}

struct Arguments {
  const int *crow, *cols;
  const int2* tiles;  // (tile row, tile column) of each listed tile
  int2* bounds;       // output: bounds[tile * block_m + row] is the range of that row's nonzeros
  int tile_count, m;
  int block_m, block_n;  // the number of rows and of columns of a tile
};
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  const i64 i = static_cast<i64>(blockIdx.x) * Config::THREADS + threadIdx.x;
  if (i >= static_cast<i64>(p.tile_count) * p.block_m) return;
  const int2 tile = p.tiles[i / p.block_m];
  const int row = tile.x * p.block_m + static_cast<int>(i % p.block_m);
  const int from = row < p.m ? p.crow[row] : 0, to = row < p.m ? p.crow[row + 1] : 0;
  const int first_column = tile.y * p.block_n;
  const int begin = lower_bound(p.cols, from, to, first_column);
  const int end = near_lower_bound(p.cols, begin, to, first_column + p.block_n);
  p.bounds[i] = make_int2(begin, end);
}
