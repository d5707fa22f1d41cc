// What the kernels that compute one tile per block share: their parameters, and the body around a
// main loop.
#pragma once

#include "gemm_core/parameters.cuh"
#include "sddmm/sampled_tile.cuh"
#include "sddmm/tile_offsets.cuh"

namespace sddmm {

template <class T, class OUT>
struct TileArguments {
  const T *a, *b, *values;  // a is (m, k); b is (n, k); values may be null
  OUT* out;
  const int *cols, *perm;  // (nnz,), tile by tile or row by row; perm may be null
  const int2* tiles;       // (tile row, tile column) of each tile to compute
  TileOffsets row_offsets;
  i64 pitch_a, pitch_b;          // elements from row to row
  i64 head_a, head_b, head_out;  // elements from head to head
  int tile_count, m, n, k;
  double alpha;
};

// Computes one tile by all threads of the block: runs the main loop, stores the accumulators to
// shared memory, which the main loop no longer needs, and samples the nonzeros there.
// store_tile(accumulators, tile) passes every accumulator to the SampledTile.
template <class Mainloop, int BM, int BN, class T, class OUT, class StoreTile>
__device__ __forceinline__ void compute_tile(const TileArguments<T, OUT>& p, unsigned char* shared,
                                             const StoreTile& store_tile) {
  using Tile = SampledTile<BM, BN, Mainloop::THREADS>;
  // Which tile of which head this block computes.
  const int head = blockIdx.x / p.tile_count, index = blockIdx.x - head * p.tile_count;
  const int2 coord = p.tiles[index];
  const int m0 = coord.x * BM, n0 = coord.y * BN;

  typename Mainloop::Accumulators acc = {};
  Mainloop::run(acc, shared, p.a + head * p.head_a, p.pitch_a, p.b + head * p.head_b, p.pitch_b, m0,
                n0, p.m, p.n, p.k);

  const typename Tile::RowRanges ranges(p.row_offsets.first_row(index, coord),
                                        p.row_offsets.row_stride, threadIdx.x);
  const typename Tile::template PrefetchedColumns<1> columns(ranges, p.cols, n0, threadIdx.x);
  __syncthreads();  // all threads have read the main loop's last stage
  const Tile tile{reinterpret_cast<float*>(shared)};
  store_tile(acc, tile);
  __syncthreads();
  const Result<T, OUT> result{p.out + head * p.head_out, p.values, static_cast<float>(p.alpha)};
  result.permuted(p.perm, [&](const auto& store) { tile.sample(columns, 0, store); });
}

}  // namespace sddmm
