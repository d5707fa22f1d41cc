// SDDMM by dense tiles on Hopper: adds to tile_mma wgmma, fed by TMA, in blocks that stay: the next
// tile's operands arrive while this one's sampled entries are stored. Limit: the tensor cores' rate
// under the card's power, and the time in which a tile's sums are taken apart.
#include "gemm_core/mainloop_wgmma.cuh"
#include "gemm_core/ptx/named_barrier.cuh"
#include "sddmm/sampled_tile.cuh"

using namespace sddmm;

using Mainloop = gemm_core::MainloopWgmma<SDDMM_ELEMENT, SDDMM_STAGES>;
// A warpgroup puts its sums down in shared memory by halves of its 256 columns.
using Tile = SampledTile<64, 128, 128>;

struct Arguments {
  gemm_core::ptx::TensorMap a, b;
  const SDDMM_ELEMENT* values;
  SDDMM_OUTPUT* out;
  const int *cols, *order;
  const int2 *tiles, *bounds;  // see tile_kernel.cuh
  i64 head_out;
  double alpha;
  int tile_count, heads, blocks, k;
  int unused[12];  // to a multiple of 64 bytes, which the maps' alignment asks for
};

extern "C" __global__ void __launch_bounds__(Mainloop::THREADS, 1)
    sddmm_kernel(const __grid_constant__ Arguments p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  auto consume = [&](int work, const Mainloop::Accumulators& sums) {
    const int head = work / p.tile_count, index = work - head * p.tile_count;
    const int consumer = Mainloop::consumer(), thread = threadIdx.x % 128;
    const Tile half{reinterpret_cast<float*>(shared + Mainloop::BYTES + consumer * Tile::BYTES)};
    Tile::Cursor cursor(p.bounds + static_cast<i64>(index) * Mainloop::BM + 64 * consumer, p.cols,
                        p.tiles[index].y * Mainloop::BN, thread);
    const Result<SDDMM_ELEMENT, SDDMM_OUTPUT> result{p.out + head * p.head_out, p.values,
                                                     static_cast<float>(p.alpha)};
#pragma unroll
    for (int first = 0; first < Mainloop::BN; first += 128) {
      gemm_core::ptx::named_barrier(1 + consumer, 128);  // the half before has been read
#pragma unroll
      for (int i = 0; i < 64; i += 2) {
        const auto at = gemm_core::fragment::wgmma_d(thread, i);
        half(at.row, at.column, sums[first / 2 + i], sums[first / 2 + i + 1]);
      }
      gemm_core::ptx::named_barrier(1 + consumer, 128);
      half.sample(cursor, first, [&](int nonzero, float sum) {
        result.store(p.order == nullptr ? nonzero : p.order[nonzero], sum);
      });
    }
  };
  Mainloop::run(
      shared, p.a, p.b, p.k, p.tile_count * p.heads, p.blocks,
      [&](int work) {
        const int head = work / p.tile_count;
        const int2 tile = p.tiles[work - head * p.tile_count];
        return Mainloop::Corner{tile.x * Mainloop::BM, tile.y * Mainloop::BN, head};
      },
      consume);
}
