// The order in which blocks visit the tiles of C.
#pragma once

#include "gemm_core/ptx/block_index.cuh"

namespace gemm_core {

struct TileIndex {
  int m, n;
};

// The tile of block `block` of tiles_m * tiles_n: bands of GROUP tile rows, each traversed column
// by column, so that blocks that run together share rows of A and columns of B in L2. GROUP 1 is
// row by row. The Python twin is spec.raster.
template <int GROUP>
__device__ __forceinline__ TileIndex raster(int block, int tiles_m, int tiles_n) {
  const int band = block / (GROUP * tiles_n);
  const int first = band * GROUP;
  const int height = tiles_m - first < GROUP ? tiles_m - first : GROUP;
  const int index = block - first * tiles_n;
  return {first + index % height, index / height};
}

// First row and column in C of this block's BM x BN tile.
struct TileOrigin {
  int m0, n0;
};
template <int GROUP, int BM, int BN>
__device__ __forceinline__ TileOrigin tile_origin(int m, int n) {
  const TileIndex tile = raster<GROUP>(ptx::block_index(), (m + BM - 1) / BM, (n + BN - 1) / BN);
  return {tile.m * BM, tile.n * BN};
}

}  // namespace gemm_core
