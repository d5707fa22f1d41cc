// What the kernels that compute one tile per block share: their parameters, and the body around a
// main loop.
#pragma once

#include "gemm_core/parameters.cuh"
#include "sddmm/row_segments.cuh"
#include "sddmm/sampled_tile.cuh"
#include "sddmm/tile_offsets.cuh"

namespace sddmm {

template <class T, class OUT>
struct TileArguments {
  const T *a, *b, *values;  // a is (m, k); b is (n, k); values may be null
  OUT* out;
  const int *cols, *perm;  // (nnz,), tile by tile or row by row; perm may be null
  const int2* tiles;       // (tile row, tile column) of each tile to compute
  // Null, or what the analysis before this launch finds: nothing is computed of a pattern that is not
  // valid, as its row offsets may be any numbers.
  const unsigned long long* is_invalid;
  TileOffsets row_offsets;
  i64 pitch_a, pitch_b;          // elements from row to row
  i64 head_a, head_b, head_out;  // elements from head to head
  int tile_count, m, n, k;
  double alpha;
};

// Whether no row of a tile has nonzeros. offsets: the entry of its first row.
template <int BM>
__device__ __forceinline__ bool is_empty(const int* offsets, int row_stride) {
  bool has_nonzeros = false;
#pragma unroll
  for (int row = threadIdx.x % 32; row < BM; row += 32) {
    const int* const own = offsets + static_cast<i64>(row) * row_stride;
    has_nonzeros |= own[0] < own[1];
  }
  return !__any_sync(FULL_MASK, has_nonzeros);
}

// The rows of a tile, as THREADS threads store them. SEGMENTS: whether columns strictly ascend within
// each row, mostly without gaps, and perm is null. DEPTH: the number of nonzeros of each of its rows
// whose columns a lane prefetches otherwise.
template <int BM, int BN, int THREADS, bool SEGMENTS, int DEPTH>
using TileRows = typename gemm_core::Select<SEGMENTS, SegmentRows<BM, BN, THREADS>,
                                            ScatteredRows<BM, BN, THREADS, DEPTH>>::type;

// Stores the sampled entries of a tile, by all threads of the block. fill(tile) stores this thread's
// accumulators to the tile in shared memory. SEGMENTS: as those of `rows`.
template <int BM, int BN, bool SEGMENTS, class Rows, class T, class OUT, class Fill>
__device__ __forceinline__ void store_rows(const Rows& rows, const TileArguments<T, OUT>& p,
                                           const Result<T, OUT>& result, int n0,
                                           unsigned char* shared, const Fill& fill) {
  __syncthreads();  // all threads have read the main loop's last stage
  const auto filled = [&](const auto& tile) {
    fill(tile);
    __syncthreads();
    return tile;
  };
  const SampledTile<BM, BN> tile{reinterpret_cast<float*>(shared)};
  if constexpr (SEGMENTS) {
    if (p.values != nullptr) {
      const ScaledTile<BM, BN, true, T, OUT> scaled{filled(tile), result};
      rows.store(scaled, p.cols, n0, result.out);
    } else if constexpr (sizeof(OUT) == 2) {
      const RoundedTile<BM, BN, OUT> rounded{reinterpret_cast<u32*>(shared), result.alpha};
      rows.store(filled(rounded), p.cols, n0, result.out);
    } else {
      const ScaledTile<BM, BN, false, T, OUT> scaled{filled(tile), result};
      rows.store(scaled, p.cols, n0, result.out);
    }
  } else {
    rows.store(filled(tile), p.cols, n0, p.perm, result);
  }
}

// Computes one tile by all threads of the block: runs the main loop, stores the accumulators to
// shared memory, which the main loop no longer needs, and samples the nonzeros there.
// store_tile(accumulators, tile) passes every accumulator to the tile in shared memory. SEGMENTS,
// DEPTH: as in TileRows.
template <class Mainloop, int BM, int BN, bool SEGMENTS = false, int DEPTH = 1, class T, class OUT,
          class StoreTile>
__device__ __forceinline__ void compute_tile(const TileArguments<T, OUT>& p, unsigned char* shared,
                                             const StoreTile& store_tile) {
  // Which tile of which head this block computes.
  const int head = blockIdx.x / p.tile_count, index = blockIdx.x - head * p.tile_count;
  const int2 coord = p.tiles[index];
  if (p.is_invalid != nullptr && *p.is_invalid != 0) return;
  const int m0 = coord.x * BM, n0 = coord.y * BN;
  const int* const offsets = p.row_offsets.first_row(index, coord);
  // Where tiles are found by their coordinates, empty ones are listed too.
  if (p.row_offsets.tile_stride == 0 && is_empty<BM>(offsets, p.row_offsets.row_stride)) return;
  TileRows<BM, BN, Mainloop::THREADS, SEGMENTS, DEPTH> rows(offsets, p.row_offsets.row_stride);
  rows.prefetch(p.values);

  typename Mainloop::Accumulators acc = {};
  Mainloop::run(acc, shared, p.a + head * p.head_a, p.pitch_a, p.b + head * p.head_b, p.pitch_b, m0,
                n0, p.m, p.n, p.k);

  const Result<T, OUT> result{p.out + head * p.head_out, p.values, static_cast<float>(p.alpha)};
  rows.load(p.cols, n0, p.perm, result);
  store_rows<BM, BN, SEGMENTS>(rows, p, result, n0, shared,
                               [&](const auto& tile) { store_tile(acc, tile); });
}

}  // namespace sddmm
