// What the tile kernels share: which tile a block takes, and its sampled epilogue.
#pragma once

#include "sddmm/sampled_tile.cuh"
#include "sddmm/tile_starts.cuh"

namespace sddmm {

// Parameters of every tile kernel. a, (m, k), and b, (n, k). tiles: (row, column), in tiles, of
// each that is computed, (tile_count,), and where each of its rows' nonzeros lie among cols.
template <class T, class OUT>
struct TileArguments {
  const T *a, *b, *values;
  OUT* out;
  const int *cols, *order;
  const int2* tiles;
  TileStarts starts;
  i64 pitch_a, pitch_b;          // elements from row to row
  i64 head_a, head_b, head_out;  // and from head to head
  int tile_count, m, n, k;
  double alpha;
};

// One tile, by all threads of a block: Mainloop::run, then `put`, which hands the accumulators to a
// SampledTile, then the nonzeros. `shared` is large enough for both.
template <class Mainloop, int BM, int BN, class T, class OUT, class Put>
__device__ __forceinline__ void sampled_tile(const TileArguments<T, OUT>& p, unsigned char* shared,
                                             const Put& put) {
  using Tile = SampledTile<BM, BN, Mainloop::THREADS>;
  const int head = blockIdx.x / p.tile_count, index = blockIdx.x - head * p.tile_count;
  const int2 tile = p.tiles[index];
  const int m0 = tile.x * BM, n0 = tile.y * BN;
  typename Mainloop::Accumulators acc = {};
  Mainloop::run(acc, shared, p.a + head * p.head_a, p.pitch_a, p.b + head * p.head_b, p.pitch_b, m0,
                n0, p.m, p.n, p.k);
  const typename Tile::Rows rows(p.starts.of(index, tile), p.starts.by_row, threadIdx.x);
  const typename Tile::template Columns<1> columns(rows, p.cols, n0, threadIdx.x);
  __syncthreads();  // everyone has read the main loop's last stage
  const Tile sums{reinterpret_cast<float*>(shared)};
  put(acc, sums);
  __syncthreads();
  const Result<T, OUT> result{p.out + head * p.head_out, p.values, static_cast<float>(p.alpha)};
  result.permuted(p.order, [&](const auto& store) { sums.sample(columns, 0, store); });
}

}  // namespace sddmm
