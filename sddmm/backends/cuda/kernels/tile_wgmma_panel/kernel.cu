// SDDMM by dense tiles on Hopper, for k that fits shared memory: as tile_wgmma_listed, but a block
// keeps its rows of b for many tiles, and one warpgroup multiplies while the other hands its sums on.
// Limit: the instructions of the three warps that store, and the card's power.
#include "gemm_core/mainloop_wgmma_panel.cuh"
#include "gemm_core/parameters.cuh"
#include "sddmm/list_sampler.cuh"
#include "sddmm/sampled_output.cuh"

using namespace sddmm;

// What tile_wgmma_panel/host.py chooses, by macro.
struct Config {
  // The types of the operands and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of rows and of columns of a tile, and of elements of k that a stage holds.
  static constexpr int BLOCK_M = SDDMM_BLOCK_M, BLOCK_N = SDDMM_BLOCK_N, BLOCK_K = SDDMM_BLOCK_K;
  // The number of such parts of k that the kept rows of b have.
  static constexpr int K_BLOCKS = SDDMM_K_BLOCKS;
  // The number of stages of the ring that TMA fills with rows of a, and of rows of each.
  static constexpr int STAGES = SDDMM_STAGES, BOX_ROWS = SDDMM_BOX_ROWS;
  // The number of entries of a slot that a thread copies at once, and of such batches under way.
  static constexpr int DEPTH = SDDMM_DEPTH, AHEAD = SDDMM_AHEAD;
  // The number of slots, for float sums and for sums of two bytes.
  static constexpr int FLOAT_SLOTS = SDDMM_FLOAT_SLOTS, HALF_SLOTS = SDDMM_HALF_SLOTS;
  // The number of elements from row to row of a slot.
  static constexpr int PITCH = SDDMM_PITCH;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of bytes of dynamic shared memory of a block: the kept rows and the ring of stages, the
  // ring of sums, then entries.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Output = Config::Output;
using Mainloop = gemm_core::MainloopWgmmaPanel<Config::Element, Config::BLOCK_N, Config::K_BLOCKS,
                                               Config::STAGES>;
// The type of sums in shared memory. A sum may be rounded before it is stored there, which halves the
// bytes; a double result is converted from a float.
using Staged = gemm_core::Select<sizeof(Output) == 8, float, Output>::type;
// The warpgroups fill the same slots, one after the other.
using Ring = StagingRing<Staged, Mainloop::BN, Mainloop::CONSUMER_WARPGROUPS, 1, Config::PITCH,
                         sizeof(Staged) == 2 ? Config::HALF_SLOTS : Config::FLOAT_SLOTS,
                         Mainloop::STORER_WARPS>;
using SampledEntries = SampledOutput<Output, Staged>;
using Sampler = ListSampler<Ring, SampledEntries, 32 * Mainloop::STORER_WARPS, Config::DEPTH,
                            Config::AHEAD>;
static_assert(Mainloop::BM == Config::BLOCK_M, "lists are made for tiles of four slots");
static_assert(Mainloop::BOX_ROWS == Config::BOX_ROWS, "the tensor map of a has boxes of these rows");
static_assert(Mainloop::BK == Config::BLOCK_K, "the tensor maps have boxes of BLOCK_K columns");
static_assert(Mainloop::THREADS == Config::THREADS, "the host launches all warpgroups");
static_assert(Mainloop::SHARED_BYTES + Ring::BYTES + Sampler::BYTES <= Config::SHARED_BYTES,
              "the rings and the entries fit");

using Arguments = ListedArguments<Output>;
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Mainloop::THREADS, 1)
    sddmm_kernel(const __grid_constant__ Arguments p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Ring ring{shared + Mainloop::SHARED_BYTES};
  ring.initialise();
  const ListedTiles tiles{p.tile_count, p.tile_count * p.heads};
  const auto coord_of = [&](int index) {
    const int listed = index < tiles.count ? index : tiles.count - 1;
    const int head = tiles.head(listed);
    const int2 coord = p.tiles[listed - head * p.tile_count];
    return Mainloop::TileCoord{coord.x * Mainloop::BM, coord.y * Mainloop::BN, head};
  };
  Mainloop::run(
      shared, p.a, p.b, p.k, Mainloop::TileScheduler(tiles.count), coord_of,
      [&p, ring, tile = 0](int warpgroup, const Mainloop::Sums& sums) mutable {
        ring.write(tile++, warpgroup, 0, sums, static_cast<float>(p.alpha));
      },
      [&](const Mainloop::TileScheduler& scheduler) {
        const Sampler sampler{ring, p.entries, p.slot_starts,
                              reinterpret_cast<int2*>(ring.memory + Ring::BYTES),
                              static_cast<int>(threadIdx.x)};
        sampler.run(scheduler, tiles, [&](int head) {
          return SampledEntries{p.out + head * p.head_out, nullptr};
        });
      });
}
