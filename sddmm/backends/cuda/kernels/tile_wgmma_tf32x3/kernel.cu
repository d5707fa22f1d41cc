// SDDMM by dense tiles of float32 as 3xTF32 on Hopper: adds to tile_mma wgmma, and warpgroups that
// split b once a block instead of once a warp. Limit: a third of the tensor cores' TF32 rate, and
// shared memory, which three fifths of that rate keep busy.
#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/mainloop_wgmma_tf32x3.cuh"
#include "sddmm/tile_kernel.cuh"

using namespace sddmm;

// What tile_wgmma_tf32x3/host.py and kernels/tile.py choose, by macro.
struct Config {
  // The types of the operands and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of rows and of columns of a tile, and of elements of k that a stage holds.
  static constexpr int BLOCK_M = SDDMM_BLOCK_M, BLOCK_N = SDDMM_BLOCK_N, BLOCK_K = SDDMM_BLOCK_K;
  // The number of stages of the ring in shared memory.
  static constexpr int STAGES = SDDMM_STAGES;
  // Whether all rows of a, or of b, start at multiples of 16 bytes.
  static constexpr bool ALIGNED_A = SDDMM_ALIGNED_A, ALIGNED_B = SDDMM_ALIGNED_B;
  // Whether rows are stored as segments (tile_kernel.cuh); else the number of nonzeros of each of
  // its rows whose columns a lane prefetches.
  static constexpr bool SEGMENTS = SDDMM_SEGMENTS;
  static constexpr int PREFETCH_DEPTH = SDDMM_PREFETCH_DEPTH;
  // The number of threads of a block, and of blocks that share a multiprocessor.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
  // The number of bytes of dynamic shared memory of a block: the ring, and then the tile of sums.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Element = Config::Element;
using Mainloop =
    gemm_core::MainloopWgmmaTf32x3<Config::STAGES, true, Config::ALIGNED_A, Config::ALIGNED_B>;
constexpr int BM = Mainloop::BM, BN = Mainloop::BN;
using Rows = TileRows<BM, BN, Mainloop::THREADS, Config::SEGMENTS, Config::PREFETCH_DEPTH>;
static_assert(BM == Config::BLOCK_M && BN == Config::BLOCK_N && Mainloop::BK == Config::BLOCK_K,
              "the main loop has one tile");
static_assert(Mainloop::THREADS == Config::THREADS, "the host launches producers and consumers");
static_assert(Mainloop::SHARED_BYTES <= Config::SHARED_BYTES, "the stages fit");
static_assert(SampledTile<BM, BN>::BYTES <= Config::SHARED_BYTES, "the tile fits");

using Arguments = TileArguments<Element, Config::Output>;
GEMM_CORE_CHECK_STRUCT(Arguments)

// Which tile of which head this block computes, and where the nonzeros of its first row begin.
struct BlockTile {
  int head;
  int2 coord;
  const int* offsets;

  __device__ __forceinline__ explicit BlockTile(const Arguments& p) {
    head = static_cast<int>(blockIdx.x) / p.tile_count;
    const int index = blockIdx.x - head * p.tile_count;
    coord = p.tiles[index];
    offsets = p.row_offsets.first_row(index, coord);
  }
};

// Stores the sampled entries of the tile, by all threads of the block, producers too. fill(tile)
// stores this thread's sums to the tile in shared memory. Which tile it is, is found again: the main
// loop leaves no registers in which to keep that.
template <class Fill>
__device__ __forceinline__ void store_tile(const Arguments& p, unsigned char* shared,
                                           const Fill& fill) {
  const BlockTile own(p);
  const int n0 = own.coord.y * BN;
  Rows rows(own.offsets, p.row_offsets.row_stride);
  const Result<Element, Config::Output> result{p.out + own.head * p.head_out, p.values,
                                               static_cast<float>(p.alpha)};
  rows.prefetch(p.values);
  rows.load(p.cols, n0, p.perm, result);
  store_rows<BM, BN, Config::SEGMENTS>(rows, p, result, n0, shared, fill);
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const BlockTile own(p);
  if (p.is_invalid != nullptr && *p.is_invalid != 0) return;
  // Where tiles are found by their coordinates, empty ones are listed too.
  if (p.row_offsets.tile_stride == 0 && is_empty<BM>(own.offsets, p.row_offsets.row_stride)) return;
  Mainloop::run(
      shared, p.a + own.head * p.head_a, p.pitch_a, p.b + own.head * p.head_b, p.pitch_b,
      own.coord.x * BM, own.coord.y * BN, p.m, p.n, p.k,
      [&](const Mainloop::Accumulators& sums) {
        store_tile(p, shared, [&](const auto& tile) {
          gemm_core::store_wgmma<Mainloop>(sums, tile, 0, 0);
        });
      },
      [&] { store_tile(p, shared, [](const auto&) {}); });
}
