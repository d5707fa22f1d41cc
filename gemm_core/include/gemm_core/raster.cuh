// The order in which blocks visit the tiles of C.
#pragma once

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

}  // namespace gemm_core
