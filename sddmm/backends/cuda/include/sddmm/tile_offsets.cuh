// Where the nonzeros of each row of each tile begin (layouts.py: TileOffsets).
#pragma once

#include "gemm_core/numeric.cuh"

namespace sddmm {

// `offsets` has one entry for each row of each tile; the entry after it is where that row ends. The
// strides count entries. Tiles are found by their number in the list or by their coordinates: the
// other strides are 0.
struct TileOffsets {
  const int* offsets;
  gemm_core::i64 tile_stride, tile_row_stride;
  int tile_column_stride, row_stride;

  // The entry of the first row of a tile. coord: (tile row, tile column).
  __device__ __forceinline__ const int* first_row(gemm_core::i64 tile, int2 coord) const {
    return offsets + tile * tile_stride + coord.x * tile_row_stride +
           static_cast<gemm_core::i64>(coord.y) * tile_column_stride;
  }
};

}  // namespace sddmm
