// SDDMM by dense tiles on Hopper: adds to tile_mma wgmma, fed by TMA, in persistent blocks: the
// next tile's operands arrive while this one's sampled entries are stored. Limit: the tensor cores'
// rate under the card's power, and the shared memory through which the epilogue samples.
#include "gemm_core/mainloop_wgmma.cuh"
#include "gemm_core/parameters.cuh"
#include "sddmm/sampled_warp.cuh"
#include "sddmm/tile_offsets.cuh"

using namespace sddmm;

// What tile_wgmma/host.py chooses, by macro.
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
  // The number of lanes that sample a row together.
  static constexpr int LANES_PER_ROW = SDDMM_LANES_PER_ROW;
  // The number of nonzeros of each of its rows whose columns a lane prefetches.
  static constexpr int PREFETCH_DEPTH = SDDMM_PREFETCH_DEPTH;
  // The number of bytes of shared memory for each of the 16 rows that a warp samples at once.
  static constexpr int ROW_BYTES = SDDMM_ROW_BYTES;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of bytes of dynamic shared memory of a block: the ring, then the rows of every warp.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Output = Config::Output;
using Mainloop = gemm_core::MainloopWgmma<Config::Element, Config::BLOCK_M, Config::BLOCK_N,
                                          Config::STAGES>;
// The type of sums in shared memory. A sum may be rounded before it is stored there, which halves the
// bytes; a double result is converted from a float.
using Staged = gemm_core::Select<sizeof(Output) == 8, float, Output>::type;
using Warp = SampledWarp<Staged, Mainloop::BN, Config::LANES_PER_ROW, Config::PREFETCH_DEPTH,
                         Config::ROW_BYTES>;
// The number of warps that have sums; the others load.
constexpr int CONSUMER_WARPS = 4 * Mainloop::CONSUMER_WARPGROUPS;
static_assert(Mainloop::BK == Config::BLOCK_K, "the tensor maps have boxes of BLOCK_K columns");
static_assert(Mainloop::CLUSTER == Config::CLUSTER_BLOCKS, "the host launches whole clusters");
static_assert(Mainloop::THREADS == Config::THREADS, "the host launches producers and consumers");
static_assert(Mainloop::A_IS_SHARED == Config::A_IS_SHARED, "its tensor map has half boxes");
static_assert(Mainloop::SHARED_BYTES + CONSUMER_WARPS * Warp::BYTES <= Config::SHARED_BYTES,
              "the ring and the rows of every warp fit");

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

// What a warp does with its 16 rows of each block of 64 rows that its warpgroup has of a tile.
struct Sampler {
  const Arguments& p;
  Staged* staged;
  int first_row;  // of the warp, in the tile
  Output* out;
  int n0;
  Warp::Nonzeros nonzeros[Mainloop::ROW_BLOCKS];

  // Loads the ranges of the rows' nonzeros.
  __device__ __forceinline__ void begin(int tile_index) {
    const bool exists = tile_index < p.tile_count * p.heads;
    const int head = exists ? tile_index / p.tile_count : 0;
    const i64 tile = exists ? tile_index - head * p.tile_count : 0;
    out = p.out + head * p.head_out;
    const int2 coord = p.tiles[tile];
    n0 = coord.y * Mainloop::BN;
    const int* const own = p.row_offsets.first_row(tile, coord) +
                           static_cast<i64>(first_row) * p.row_offsets.row_stride;
#pragma unroll
    for (int block = 0; block < Mainloop::ROW_BLOCKS; ++block)
      nonzeros[block].load_ranges(exists ? own + block * 64 * p.row_offsets.row_stride : nullptr,
                                  p.row_offsets.row_stride);
  }

  // Loads the columns of the first nonzeros, while products are in flight.
  __device__ __forceinline__ void prefetch() {
    for (auto& block : nonzeros) block.prefetch(p.cols);
  }

  // Samples the sums of a tile and stores them.
  __device__ __forceinline__ void store(const Mainloop::Accumulators& sums) const {
    const auto store_entry = [&](int position, auto sum) { out[position] = sum; };
    const auto sample = [&](const auto& store_nonzero) {
#pragma unroll
      for (int block = 0; block < Mainloop::ROW_BLOCKS; ++block)
        Warp::sample(sums[block], static_cast<float>(p.alpha), nonzeros[block], p.cols, n0, staged,
                     store_nonzero);
    };
    if (p.perm == nullptr)
      sample(store_entry);
    else
      sample([&](int nonzero, auto sum) { store_entry(p.perm[nonzero], sum); });
  }
};

extern "C" __global__ void __cluster_dims__(Config::CLUSTER_BLOCKS, 1, 1)
    __launch_bounds__(Mainloop::THREADS, 1) sddmm_kernel(const __grid_constant__ Arguments p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x - Mainloop::PRODUCER_THREADS) / 32;
  Mainloop::run(
      shared, p.a, p.b, p.k, Mainloop::TileScheduler(p.tile_count * p.heads),
      [&](int index) {
        const int head = index / p.tile_count;
        const int2 coord = p.tiles[index - head * p.tile_count];
        return Mainloop::TileCoord{coord.x * Mainloop::BM, coord.y * Mainloop::BN, head};
      },
      Sampler{p, reinterpret_cast<Staged*>(shared + Mainloop::SHARED_BYTES + warp * Warp::BYTES),
              warp / 4 * 64 * Mainloop::ROW_BLOCKS + warp % 4 * 16});
}
