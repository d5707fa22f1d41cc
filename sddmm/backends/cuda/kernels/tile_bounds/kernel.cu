// Where the nonzeros of each row of each listed tile lie: a binary search in a row whose columns ascend,
// and short ones from there. Limit: the latency of some twenty dependent reads, which many threads hide.
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

// The same where the answer is near `from`: it is surrounded first, by steps that double.
__device__ __forceinline__ int near_lower_bound(const int* cols, int from, int to, int column) {
  gemm_core::i64 step = 4;
  while (step < to - from && cols[from + step - 1] < column) from += step, step *= 2;
  return lower_bound(cols, from, step < to - from ? from + static_cast<int>(step) : to, column);
}

struct Arguments {
  const int *crow, *cols;
  const int2* tiles;
  int2* bounds;
  int tile_count, m, block_m, block_n;
};

// bounds[t][r]: where the nonzeros of row r of tile t begin and end. One thread a row.
extern "C" __global__ void __launch_bounds__(256) sddmm_kernel(const Arguments p) {
  using gemm_core::i64;
  const i64 i = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= static_cast<i64>(p.tile_count) * p.block_m) return;
  const int2 tile = p.tiles[i / p.block_m];
  const int row = tile.x * p.block_m + static_cast<int>(i % p.block_m);
  const int from = row < p.m ? p.crow[row] : 0, to = row < p.m ? p.crow[row + 1] : 0;
  const int first = tile.y * p.block_n;
  const int begin = lower_bound(p.cols, from, to, first);
  p.bounds[i] = make_int2(begin, near_lower_bound(p.cols, begin, to, first + p.block_n));
}
