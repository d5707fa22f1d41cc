// SDDMM by dense tiles on Hopper: as tile_wgmma_async, but the three warps that store read, for each
// nonzero, where its sum is and where it goes, in place of the rows' ranges and columns. Limit: the
// tensor cores' rate under the card's power, and the sums' way through shared memory.
#include "gemm_core/mainloop_wgmma_async.cuh"
#include "gemm_core/parameters.cuh"
#include "sddmm/list_sampler.cuh"
#include "sddmm/sampled_output.cuh"

using namespace sddmm;

// What tile_wgmma_listed/host.py chooses, by macro.
struct Config {
  // The types of the operands and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of rows and of columns of a tile, and of elements of k that a stage holds.
  static constexpr int BLOCK_M = SDDMM_BLOCK_M, BLOCK_N = SDDMM_BLOCK_N, BLOCK_K = SDDMM_BLOCK_K;
  // The number of stages of the ring that TMA fills.
  static constexpr int STAGES = SDDMM_STAGES;
  // The number of blocks of a cluster, which share loads.
  static constexpr int CLUSTER_BLOCKS = SDDMM_CLUSTER_BLOCKS;
  // Whether the blocks of a cluster share rows of a; else they share rows of b.
  static constexpr bool A_IS_SHARED = SDDMM_A_IS_SHARED;
  // The number of entries of a slot that a thread copies at once, and of such batches under way.
  static constexpr int DEPTH = SDDMM_DEPTH, AHEAD = SDDMM_AHEAD;
  // The number of slots of each warpgroup, for float sums and for sums of two bytes.
  static constexpr int FLOAT_SLOTS = SDDMM_FLOAT_SLOTS, HALF_SLOTS = SDDMM_HALF_SLOTS;
  // The number of elements from row to row of a slot.
  static constexpr int PITCH = SDDMM_PITCH;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of bytes of dynamic shared memory of a block: the ring of stages, the ring of sums,
  // then entries.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Output = Config::Output;
using Mainloop = gemm_core::MainloopWgmmaAsync<Config::Element, Config::BLOCK_M, Config::BLOCK_N,
                                               Config::STAGES, 0>;
// The type of sums in shared memory. A sum may be rounded before it is stored there, which halves the
// bytes; a double result is converted from a float.
using Staged = gemm_core::Select<sizeof(Output) == 8, float, Output>::type;
using Ring = StagingRing<Staged, Mainloop::BN, Mainloop::ROW_BLOCKS, Mainloop::CONSUMER_WARPGROUPS,
                         Config::PITCH, sizeof(Staged) == 2 ? Config::HALF_SLOTS : Config::FLOAT_SLOTS,
                         Mainloop::STORER_WARPS>;
using SampledEntries = SampledOutput<Output, Staged>;
using Sampler = ListSampler<Ring, SampledEntries, 32 * Mainloop::STORER_WARPS, Config::DEPTH,
                            Config::AHEAD>;
static_assert(Mainloop::BM == 128, "lists are made for tiles of four slots");
static_assert(Mainloop::BK == Config::BLOCK_K, "the tensor maps have boxes of BLOCK_K columns");
static_assert(Mainloop::CLUSTER == Config::CLUSTER_BLOCKS, "the host launches whole clusters");
static_assert(Mainloop::THREADS == Config::THREADS, "the host launches all warpgroups");
static_assert(Mainloop::A_IS_SHARED == Config::A_IS_SHARED, "its tensor map has half boxes");
static_assert(Mainloop::SHARED_BYTES + Ring::BYTES + Sampler::BYTES <= Config::SHARED_BYTES,
              "the rings and the entries fit");

using Arguments = ListedArguments<Output>;
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __cluster_dims__(Config::CLUSTER_BLOCKS, 1, 1)
    __launch_bounds__(Mainloop::THREADS, 1) sddmm_kernel(const __grid_constant__ Arguments p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Ring ring{shared + Mainloop::SHARED_BYTES};
  ring.initialise();
  const ListedTiles tiles{p.tile_count, p.tile_count * p.heads};
  const auto coord_of = [&](int index) {
    const int head = tiles.head(index);
    const int2 coord = p.tiles[index - head * p.tile_count];
    return Mainloop::TileCoord{coord.x * Mainloop::BM, coord.y * Mainloop::BN, head};
  };
  Mainloop::run(
      shared, p.a, p.b, p.k, Mainloop::TileScheduler(tiles.count), coord_of,
      [&p, ring, tile = 0](int warpgroup, const Mainloop::Accumulators& sums) mutable {
        ring.write(tile++, 0, warpgroup, sums[0], static_cast<float>(p.alpha));
      },
      [&](int, const Mainloop::TileScheduler& scheduler) {
        const Sampler sampler{ring, p.entries, p.slot_starts,
                              reinterpret_cast<int2*>(ring.memory + Ring::BYTES),
                              static_cast<int>(threadIdx.x)};
        sampler.run(scheduler, tiles, [&](int head) {
          return SampledEntries{p.out + head * p.head_out, nullptr};
        });
      });
}
