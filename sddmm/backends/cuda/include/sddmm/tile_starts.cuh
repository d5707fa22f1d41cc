// Where the nonzeros of the rows of tiles lie (partition.py: TileStarts).
#pragma once

#include "gemm_core/numeric.cuh"

namespace sddmm {

struct TileStarts {
  const int* starts;
  gemm_core::i64 by_tile, by_tile_row;
  int by_tile_column, by_row;

  // Of the first row of a tile, the `number`-th of the list.
  __device__ __forceinline__ const int* of(gemm_core::i64 number, int2 place) const {
    return starts + number * by_tile + place.x * by_tile_row +
           static_cast<gemm_core::i64>(place.y) * by_tile_column;
  }
};

}  // namespace sddmm
