// SDDMM by dense tiles on Hopper: adds to tile_mma wgmma, fed by TMA, in blocks that stay: the next
// tile's operands arrive while this one's sampled entries are stored. Limit: the tensor cores' rate
// under the card's power, and the shared memory through which a tile's sums are taken apart.
#include "gemm_core/mainloop_wgmma.cuh"
#include "sddmm/sampled_warp.cuh"
#include "sddmm/tile_starts.cuh"

using namespace sddmm;

constexpr bool WEIGHTED = SDDMM_WEIGHTED;  // by values

using Mainloop = gemm_core::MainloopWgmma<SDDMM_ELEMENT, SDDMM_BLOCK_M, SDDMM_BLOCK_N, SDDMM_STAGES>;
// What is stored as it is may be rounded before it is taken apart, which halves the work; a double
// is made of a float in the end.
using Staged = gemm_core::Select<WEIGHTED || sizeof(SDDMM_OUTPUT) == 8, float, SDDMM_OUTPUT>::type;
using Warp = SampledWarp<Staged, Mainloop::BN, SDDMM_DEPTH, SDDMM_ROW_BYTES>;

struct Arguments {
  gemm_core::ptx::TensorMap a, b;
  const SDDMM_ELEMENT* values;
  SDDMM_OUTPUT* out;
  const int *cols, *order;
  const int2* tiles;
  TileStarts starts;
  i64 head_out;
  double alpha;
  int tile_count, heads, k;
  int unused[7];  // to a multiple of 64 bytes, which the maps' alignment asks for
};

// What a warp does with its 16 rows of each block of 64 that its warpgroup has of a tile.
struct Sampler {
  const Arguments& p;
  Staged* staged;
  int first_row;  // of the warp, in the tile
  SDDMM_OUTPUT* out;
  int n0;
  Warp::Nonzeros nonzeros[Mainloop::ROW_BLOCKS];

  __device__ __forceinline__ void begin(int tile_index) {
    const bool any = tile_index < p.tile_count * p.heads;
    const int head = any ? tile_index / p.tile_count : 0;
    const i64 tile = any ? tile_index - head * p.tile_count : 0;
    out = p.out + head * p.head_out;
    const int2 place = p.tiles[tile];
    n0 = place.y * Mainloop::BN;
    const int* const own = p.starts.of(tile, place) + static_cast<i64>(first_row) * p.starts.by_row;
#pragma unroll
    for (int block = 0; block < Mainloop::ROW_BLOCKS; ++block)
      nonzeros[block].find(any ? own + block * 64 * p.starts.by_row : nullptr, p.starts.by_row);
  }

  __device__ __forceinline__ void prefetch() {
    for (auto& each : nonzeros) each.look_ahead(p.cols);
  }

  __device__ __forceinline__ void store(const Mainloop::Accumulators& sums) const {
    const auto store_entry = [&](int at, auto sum) {
      if constexpr (WEIGHTED)
        out[at] = Narrow<SDDMM_OUTPUT>::from(sum * widened(p.values[at]));
      else
        out[at] = sum;
    };
    const auto sample = [&](const auto& each) {
#pragma unroll
      for (int block = 0; block < Mainloop::ROW_BLOCKS; ++block)
        Warp::sample(sums[block], static_cast<float>(p.alpha), nonzeros[block], p.cols, n0, staged,
                     each);
    };
    if (p.order == nullptr)
      sample(store_entry);
    else
      sample([&](int nonzero, auto sum) { store_entry(p.order[nonzero], sum); });
  }
};

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(Mainloop::THREADS, 1)
    sddmm_kernel(const __grid_constant__ Arguments p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x - Mainloop::PRODUCER_THREADS) / 32;
  Mainloop::run(
      shared, p.a, p.b, p.k, Mainloop::TileScheduler(p.tile_count * p.heads),
      [&](int index) {
        const int head = index / p.tile_count;
        const int2 tile = p.tiles[index - head * p.tile_count];
        return Mainloop::TileCoord{tile.x * Mainloop::BM, tile.y * Mainloop::BN, head};
      },
      Sampler{p, reinterpret_cast<Staged*>(shared + Mainloop::SHARED_BYTES + warp * Warp::BYTES),
              warp / 4 * 64 * Mainloop::ROW_BLOCKS + warp % 4 * 16});
}
