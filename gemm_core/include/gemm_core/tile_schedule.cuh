// Which tiles of C a block of a wgmma kernel computes, one after the other.
#pragma once

#include "gemm_core/raster.cuh"

namespace gemm_core {

// Tiles of BM x BN in the order of raster.cuh. The CLUSTER blocks of a cluster take tiles above each
// other; the last may begin past the last row, whose loads give zeros and whose stores give nothing.
// A grid of as many blocks as tiles gives each block one tile; a smaller one gives each block many.
template <int GROUP, int BM, int BN, int CLUSTER>
struct TileSchedule {
  int tiles_m, tiles_n;       // tiles_m counts clusters
  int rank, tile, step;       // rank: of this block in its cluster; step: the clusters of the grid

  __device__ __forceinline__ TileSchedule(int m, int n)
      : tiles_m((m + BM * CLUSTER - 1) / (BM * CLUSTER)),
        tiles_n((n + BN - 1) / BN),
        rank(blockIdx.x % CLUSTER),
        tile(blockIdx.x / CLUSTER),
        step(gridDim.x / CLUSTER) {}
  __device__ __forceinline__ bool has_tile() const { return tile < tiles_m * tiles_n; }
  __device__ __forceinline__ void advance() { tile += step; }
  __device__ __forceinline__ TileOrigin origin() const {
    const TileIndex at = raster<GROUP>(tile, tiles_m, tiles_n);
    return {(at.m * CLUSTER + rank) * BM, at.n * BN};
  }
};

}  // namespace gemm_core
