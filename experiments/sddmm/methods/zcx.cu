// A re-implementation of zcx's SDDMM by WMMA tiles, from its description: a warp multiplies one 16 x 16 tile
// that holds nonzeros, straight from global memory; then, nonzero by nonzero, the lane whose fragment
// has it stores it. m, n and k are multiples of 16.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"
#include "gemm_core/ptx/wmma.cuh"

using namespace gemm_core;

struct Arguments {
  const f16 *a, *b;  // (m, k), and (n, k) rows
  float* out;
  const int2* tiles;      // row and column, in tiles, of the tiles that hold nonzeros
  const int* tile_index;  // tile t has the nonzeros tile_index[t] .. tile_index[t + 1]
  const int* tile_offset;  // 16 * row + column of each nonzero in its tile
  const int* position;     // where the value of each nonzero is stored
  int count, k;            // number of tiles; inner dimension
};
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(512) wmma_tiles(const Arguments p) {
  const int tile = (blockIdx.x * 512 + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (tile >= p.count) return;
  using Fragments = ptx::Wmma<16, 16>;
  const f16* a = p.a + static_cast<i64>(p.tiles[tile].x) * 16 * p.k;
  const f16* b = p.b + static_cast<i64>(p.tiles[tile].y) * 16 * p.k;
  float sums[8] = {};
  for (int k0 = 0; k0 < p.k; k0 += 16) {
    u32 from_a[8], from_b[8];
    Fragments::load_a(from_a, a + k0, p.k);
    Fragments::load_b_n_rows(from_b, b + k0, p.k);
    Fragments::multiply_n_rows(sums, from_a, from_b);
  }
  for (int i = p.tile_index[tile]; i < p.tile_index[tile + 1]; ++i) {
    const int row = p.tile_offset[i] / 16, column = p.tile_offset[i] % 16;
    // The inverse of fragment.cuh: wmma_accumulator<16, 16>.
    if (lane != row % 8 * 4 + column % 8 / 2) continue;
    const int element = column % 2 + row / 8 * 2 + column / 8 * 4;
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (e == element) p.out[p.position[i]] = sums[e];
  }
}
