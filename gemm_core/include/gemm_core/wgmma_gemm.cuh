// What the wgmma rungs of the ladder share: their parameters, and the plain store of their sums.
#pragma once

#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/fragment.cuh"
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"
#include "gemm_core/stage_barriers.cuh"
#include "gemm_core/tile_schedule.cuh"
#include "gemm_core/wgmma_stage.cuh"

namespace gemm_core {

// a, b, c: tensor maps of the operands and, for the rungs that store by TMA, of C (m, n), whose rows
// start `pitch_c` elements apart at `out`. k > 0.
template <class Output>
struct WgmmaArguments {
  ptx::TensorMap a, b, c;
  Output* out;
  i64 pitch_c;
  int m, n, k;
  // The alignment of the maps rounds the size up to a multiple of 64.
  int unused0, unused1, unused2, unused3, unused4, unused5, unused6, unused7, unused8;
};

// Passes a warpgroup's sums to a dense epilogue; its first row and column in C are m0 and n0.
template <int ROW_BLOCKS, int SUMS, class Epilogue>
__device__ __forceinline__ void store_wgmma_rows(const float (&sums)[ROW_BLOCKS][SUMS],
                                                 const Epilogue& epilogue, int m0, int n0) {
#pragma unroll
  for (int block = 0; block < ROW_BLOCKS; ++block)
#pragma unroll
    for (int i = 0; i < SUMS; i += 2) {
      const fragment::Position at = fragment::wgmma_d(threadIdx.x % 128, i);
      epilogue(m0 + 64 * block + at.row, n0 + at.column, sums[block][i], sums[block][i + 1]);
    }
}

}  // namespace gemm_core
