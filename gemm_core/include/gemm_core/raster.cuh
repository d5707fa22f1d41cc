// The order in which blocks visit the tiles of C.
#pragma once

#include "gemm_core/ptx/block_index.cuh"

namespace gemm_core {

struct TileIndex {
  int m, n;
};

// Block `id` of tiles_m * tiles_n takes this tile: bands of GROUP tile rows, walked down, then right,
// so that blocks that run together share rows of A and columns of B in L2. GROUP 1 is row by row.
// Python twin: spec.raster.
template <int GROUP>
__device__ __forceinline__ TileIndex raster(int id, int tiles_m, int tiles_n) {
  const int band = id / (GROUP * tiles_n);
  const int first = band * GROUP;
  const int height = tiles_m - first < GROUP ? tiles_m - first : GROUP;
  const int within = id - first * tiles_n;
  return {first + within % height, within / height};
}

// First row and column of C of this block's BM x BN tile.
struct TileOrigin {
  int m0, n0;
};
template <int GROUP, int BM, int BN>
__device__ __forceinline__ TileOrigin tile_origin(int m, int n) {
  const TileIndex tile = raster<GROUP>(ptx::block_index(), (m + BM - 1) / BM, (n + BN - 1) / BN);
  return {tile.m * BM, tile.n * BN};
}

}  // namespace gemm_core
