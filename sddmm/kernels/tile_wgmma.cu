// SDDMM by dense tiles on Hopper: adds to tile_mma wgmma, fed by TMA, in blocks that stay: the next
// tile's operands arrive while this one's sampled entries are stored. Limit: the tensor cores' rate
// under the card's power, and the time in which a tile's sums are taken apart.
#include "gemm_core/mainloop_wgmma.cuh"
#include "gemm_core/ptx/named_barrier.cuh"
#include "sddmm/sampled_tile.cuh"

using namespace sddmm;

using Mainloop = gemm_core::MainloopWgmma<SDDMM_ELEMENT, SDDMM_STAGES>;
// A warpgroup puts its sums down in shared memory a quarter of its 256 columns at a time.
constexpr int PART = 64;
using Tile = SampledTile<64, PART, 128>;

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

// What a warpgroup does with its 64 rows of a tile.
struct Sampler {
  const Arguments& p;
  unsigned char* shared;  // behind the main loop's
  int half, thread;
  int work, n0;      // of the tile announced
  Tile::Rows rows;
  int now;           // the tile begun
  Tile::Columns<3> columns;

  __device__ __forceinline__ void announce(int next) {
    work = next;
    const int index = work % p.tile_count;
    n0 = p.tiles[index].y * Mainloop::BN;
    rows = Tile::Rows(p.bounds + static_cast<i64>(index) * Mainloop::BM + 64 * half, thread);
  }

  __device__ __forceinline__ void begin() {
    now = work;
    columns = Tile::Columns<3>(rows, p.cols, n0, thread);
  }

  __device__ __forceinline__ void consume(const Mainloop::Accumulators& sums) const {
    const Tile tile{reinterpret_cast<float*>(shared + half * Tile::BYTES)};
    const Result<SDDMM_ELEMENT, SDDMM_OUTPUT> result{p.out + now / p.tile_count * p.head_out,
                                                     p.values, static_cast<float>(p.alpha)};
#pragma unroll
    for (int left = 0; left < Mainloop::BN; left += PART) {
      gemm_core::ptx::named_barrier(1 + half, 128);  // what lay there has been read
#pragma unroll
      for (int i = 0; i < PART / 2; i += 2) {
        const auto at = gemm_core::fragment::wgmma_d(thread, i);
        tile(at.row, at.column, sums[left / 2 + i], sums[left / 2 + i + 1]);
      }
      gemm_core::ptx::named_barrier(1 + half, 128);
      result.in_order(p.order, [&](const auto& store) { tile.sample(columns, left, store); });
    }
  }
};

extern "C" __global__ void __launch_bounds__(Mainloop::THREADS, 1)
    sddmm_kernel(const __grid_constant__ Arguments p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Mainloop::run(
      shared, p.a, p.b, p.k, p.tile_count * p.heads, p.blocks,
      [&](int work) {
        const int head = work / p.tile_count;
        const int2 tile = p.tiles[work - head * p.tile_count];
        return Mainloop::Corner{tile.x * Mainloop::BM, tile.y * Mainloop::BN, head};
      },
      Sampler{p, shared + Mainloop::BYTES, Mainloop::half(), static_cast<int>(threadIdx.x % 128)});
}
