// SDDMM by dense tiles on Hopper: adds to tile_wgmma three warps that only store: they sample a tile
// while two warpgroups multiply the next one. Limit: the tensor cores' rate under the card's power,
// and where k is small or tiles are full, the instructions of these three warps.
#include "gemm_core/mainloop_wgmma_async.cuh"
#include "gemm_core/parameters.cuh"
#include "sddmm/tile_offsets.cuh"
#include "sddmm/tile_sampler.cuh"

using namespace sddmm;

// What tile_wgmma_async/host.py chooses, by macro.
struct Config {
  // The types of the operands and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of rows and of columns of a tile, and of elements of k that a stage holds.
  static constexpr int BLOCK_M = SDDMM_BLOCK_M, BLOCK_N = SDDMM_BLOCK_N, BLOCK_K = SDDMM_BLOCK_K;
  // The number of stages of the ring that TMA fills.
  static constexpr int STAGES = SDDMM_STAGES;
  // The number of stages that the first consumer warpgroup multiplies before the second starts.
  static constexpr int LEAD = SDDMM_LEAD;
  // The number of blocks of a cluster, which share loads.
  static constexpr int CLUSTER_BLOCKS = SDDMM_CLUSTER_BLOCKS;
  // Whether the blocks of a cluster share rows of a; else they share rows of b.
  static constexpr bool A_IS_SHARED = SDDMM_A_IS_SHARED;
  // The number of lanes that sample a row together.
  static constexpr int LANES_PER_ROW = SDDMM_LANES_PER_ROW;
  // The number of nonzeros of each of its rows whose columns a lane prefetches.
  static constexpr int PREFETCH_DEPTH = SDDMM_PREFETCH_DEPTH;
  // Whether rows of consecutive columns are stored as segments; columns then strictly ascend.
  static constexpr bool SEGMENTS = SDDMM_SEGMENTS;
  // The number of slots of each warpgroup, for float sums and for sums of two bytes.
  static constexpr int FLOAT_SLOTS = SDDMM_FLOAT_SLOTS, HALF_SLOTS = SDDMM_HALF_SLOTS;
  // The number of bytes from row to row of such slots.
  static constexpr int FLOAT_PITCH = SDDMM_FLOAT_PITCH, HALF_PITCH = SDDMM_HALF_PITCH;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of bytes of dynamic shared memory of a block: the ring of stages, then the
  // ring of sums.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Output = Config::Output;
using Mainloop = gemm_core::MainloopWgmmaAsync<Config::Element, Config::BLOCK_M, Config::BLOCK_N,
                                               Config::STAGES, Config::LEAD>;
// The type of sums in shared memory. A sum may be rounded before it is stored there, which halves the
// bytes; a double result is converted from a float.
using Staged = gemm_core::Select<sizeof(Output) == 8, float, Output>::type;
constexpr bool NARROW = sizeof(Staged) == 2;
using Ring = StagingRing<Staged, Mainloop::BN, Mainloop::ROW_BLOCKS, Mainloop::CONSUMER_WARPGROUPS,
                         (NARROW ? Config::HALF_PITCH : Config::FLOAT_PITCH) / sizeof(Staged),
                         NARROW ? Config::HALF_SLOTS : Config::FLOAT_SLOTS,
                         Mainloop::STORER_WARPS>;
using SampledEntries = SampledOutput<Output, Staged>;
using Sampler = TileSampler<Ring, SampledEntries, Config::LANES_PER_ROW, Config::PREFETCH_DEPTH,
                            Config::SEGMENTS, (Config::LEAD > 0)>;
static_assert(Mainloop::BK == Config::BLOCK_K, "the tensor maps have boxes of BLOCK_K columns");
static_assert(Mainloop::CLUSTER == Config::CLUSTER_BLOCKS, "the host launches whole clusters");
static_assert(Mainloop::THREADS == Config::THREADS, "the host launches all warpgroups");
static_assert(Sampler::Rows::WARPS == Mainloop::STORER_WARPS, "");
static_assert(Mainloop::A_IS_SHARED == Config::A_IS_SHARED, "its tensor map has half boxes");
static_assert(Mainloop::SHARED_BYTES + Ring::BYTES <= Config::SHARED_BYTES, "both rings fit");

struct Arguments {
  gemm_core::ptx::TensorMap a, b;  // of (heads, m, k) and (heads, n, k)
  Output* out;
  const int *cols, *perm;  // (nnz,); perm may be null
  const int2* tiles;       // (tile row, tile column) of each tile to compute
  TileOffsets row_offsets;
  i64 head_out;  // elements from head to head
  double alpha;
  int tile_count, heads, k;
  // The alignment of the maps rounds the size up to a multiple of 64.
  int unused0, unused1, unused2, unused3, unused4, unused5, unused6, unused7, unused8;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// A tile of the list; number is -1 if there is none.
struct TilePlace {
  int number, head;
  int2 coord;
};
__device__ __forceinline__ TilePlace find_tile(const Arguments& p, int index) {
  if (index >= p.tile_count * p.heads) return {-1, 0, {0, 0}};
  const int head = index / p.tile_count, number = index - head * p.tile_count;
  return {number, head, p.tiles[number]};
}

// Loads the facts of a tile that the sampler needs first.
__device__ __forceinline__ void load_tile(const Arguments& p, int warp, const TilePlace& place,
                                          Sampler::Tile& tile) {
  tile.n0 = place.coord.y * Mainloop::BN;
  tile.output = {p.out + place.head * p.head_out, p.perm};
  const int* const offsets =
      place.number >= 0 ? p.row_offsets.first_row(place.number, place.coord) : nullptr;
  tile.rows.load_ranges(warp, offsets, p.row_offsets.row_stride);
}

extern "C" __global__ void __cluster_dims__(Config::CLUSTER_BLOCKS, 1, 1)
    __launch_bounds__(Mainloop::THREADS, 1) sddmm_kernel(const __grid_constant__ Arguments p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Ring ring{shared + Mainloop::SHARED_BYTES};
  ring.initialise();
  const auto coord_of = [&](int index) {
    const int head = index / p.tile_count;
    const int2 coord = p.tiles[index - head * p.tile_count];
    return Mainloop::TileCoord{coord.x * Mainloop::BM, coord.y * Mainloop::BN, head};
  };
  Mainloop::run(
      shared, p.a, p.b, p.k, Mainloop::TileScheduler(p.tile_count * p.heads), coord_of,
      [&p, ring, tile = 0](int warpgroup, const Mainloop::Accumulators& sums) mutable {
#pragma unroll
        for (int block = 0; block < Mainloop::ROW_BLOCKS; ++block)
          ring.write(tile, block, warpgroup, sums[block], static_cast<float>(p.alpha));
        ++tile;
      },
      [&](int warp, const Mainloop::TileScheduler& scheduler) {
        Sampler{ring, p.cols, warp}.run(
            scheduler, [&](int index) { return find_tile(p, index); },
            [&](const TilePlace& place, Sampler::Tile& tile) { load_tile(p, warp, place, tile); });
      });
}
