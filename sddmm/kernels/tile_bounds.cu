// Where the nonzeros of each row of each listed tile lie: two binary searches in a row whose columns
// ascend. Limit: the latency of some ten dependent reads, which many threads hide.
#include "gemm_core/numeric.cuh"

// First of cols[from .. to) that is not below `column`.
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

struct Arguments {
  const int *crow, *cols;
  const int2* tiles;
  int2* bounds;
  int tile_count, m, block_m, block_n;
};

// bounds[t][r]: of row r of tile t. One thread each.
extern "C" __global__ void __launch_bounds__(256) sddmm_kernel(const Arguments p) {
  using gemm_core::i64;
  const i64 i = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= static_cast<i64>(p.tile_count) * p.block_m) return;
  const int2 tile = p.tiles[i / p.block_m];
  const int row = tile.x * p.block_m + static_cast<int>(i % p.block_m);
  int2 found = make_int2(0, 0);
  if (row < p.m) {
    const int first = tile.y * p.block_n, end = p.crow[row + 1];
    found.x = lower_bound(p.cols, p.crow[row], end, first);
    found.y = lower_bound(p.cols, found.x, end, first + p.block_n);
  }
  p.bounds[i] = found;
}
