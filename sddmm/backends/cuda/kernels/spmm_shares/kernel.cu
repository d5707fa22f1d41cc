// The shares of nonzeros and rows that the warps of spmm_gather sum: equal numbers for all blocks,
// whose ends move to the end of a row if one is near, so that few rows are cut. Adds a warp for
// each share, which searches the sorted row ids. Limit: the latency of some ten dependent loads.
#include "gemm_core/parameters.cuh"
#include "sddmm/row_shares.cuh"
#include "sddmm/search.cuh"

using namespace sddmm;

// What spmm_shares/host.py chooses, by macro.
struct Config {
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
};

struct Arguments {
  const int* rows;  // (nnz,), ascending
  RowShare* shares;
  int* has_cuts;  // pinned host memory, 0: set to 1 if any block begins within a row
  i64 nnz;
  i64 block_size;  // the number of nonzeros and rows of a block
  int m, blocks, warps;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// Where a block begins: with which nonzero, and at which number. Nonzero i has number rows[i] + i,
// and a row the number after its last nonzero's.
struct Boundary {
  i64 nonzero, number;
};

// The least i of low .. high with is_past(i).
template <class IsPast>
__device__ __forceinline__ i64 search(i64 low, i64 high, const IsPast& is_past) {
  i64 lows[1] = {low}, highs[1] = {high};
  warp_lower_bound(lows, highs, [&](int, i64 i) { return is_past(i); });
  return lows[0];
}

// Where block `index` begins: at the nearest end of a row, if one is near.
__device__ __forceinline__ Boundary find_boundary(const Arguments& p, i64 index) {
  const i64 total = p.nnz + p.m;
  const i64 number = index * p.block_size < total ? index * p.block_size : total;
  const i64 i = search(number > p.m ? number - p.m : 0, number < p.nnz ? number : p.nnz,
                       [&](i64 at) { return p.rows[at] + at >= number; });
  if (i == 0 || i == p.nnz || p.rows[i - 1] != p.rows[i]) return {i, number};
  const i64 near = p.block_size / 4, row = p.rows[i];
  const i64 low = i - near - 1 > 0 ? i - near - 1 : 0;
  const i64 high = i + near + 1 < p.nnz ? i + near + 1 : p.nnz;
  const i64 begin = search(low, i, [&](i64 at) { return p.rows[at] >= row; });
  const i64 end = search(i, high, [&](i64 at) { return p.rows[at] > row; });
  const i64 back = begin == 0 || begin > low ? i - begin : near + 1;
  const i64 ahead = end == p.nnz || end < high ? end - i : near + 1;
  if (back > near && ahead > near) return {i, number};
  const i64 nearest = back < ahead ? begin : end;
  return {nearest, nearest == 0 ? 0 : nearest + p.rows[nearest - 1]};
}

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  const int share = blockIdx.x * (Config::THREADS / 32) + threadIdx.x / 32;
  const int block = share / p.warps, warp = share - block * p.warps;
  if (block >= p.blocks) return;
  const Boundary first = find_boundary(p, block), last = find_boundary(p, block + 1);
  Boundary ends[2];
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    ends[t].number = first.number + (last.number - first.number) * (warp + t) / p.warps;
    ends[t].nonzero = search(first.nonzero, last.nonzero,
                             [&](i64 at) { return p.rows[at] + at >= ends[t].number; });
  }
  if (threadIdx.x % 32 != 0) return;
  const i64 begin = ends[0].nonzero, end = ends[1].nonzero;
  auto row_of = [&](i64 i) { return i >= 0 && i < p.nnz ? p.rows[i] : -1; };
  const int before = row_of(begin - 1);
  p.shares[share] = {begin, end, static_cast<int>(ends[0].number - begin),
                     static_cast<int>(ends[1].number - end), before, row_of(end - 1), row_of(end)};
  if (warp == 0 && before >= 0 && before == row_of(begin)) *p.has_cuts = 1;
}
