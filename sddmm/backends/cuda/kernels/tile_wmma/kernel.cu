// SDDMM by WMMA tiles: as tile_mma, on gemm_core's WMMA main loop; adds fragments of three shapes,
// whose layout fixes which lane holds which sum. The published SDDMM log's way, with tiles of many
// warps. Limit: that of tile_mma, and padded shared memory.
#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/mainloop_wmma.cuh"
#include "sddmm/tile_kernel.cuh"

using namespace sddmm;

// What tile_wmma/host.py and kernels/tile.py choose, by macro.
struct Config {
  // The types of the operands, always half precision, and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of rows and of columns of a fragment of sums; the third extent is 16.
  static constexpr int FRAGMENT_M = SDDMM_FRAGMENT_M, FRAGMENT_N = SDDMM_FRAGMENT_N;
  // The number of rows and of columns of a tile, and of elements of k that a stage holds.
  static constexpr int BLOCK_M = SDDMM_BLOCK_M, BLOCK_N = SDDMM_BLOCK_N, BLOCK_K = SDDMM_BLOCK_K;
  // The number of warps down and across a tile.
  static constexpr int WARPS_M = SDDMM_WARPS_M, WARPS_N = SDDMM_WARPS_N;
  // The number of stages of the ring in shared memory.
  static constexpr int STAGES = SDDMM_STAGES;
  // The number of elements between two rows in shared memory, against bank conflicts.
  static constexpr int PAD = SDDMM_PAD;
  // Whether all rows of a, or of b, start at multiples of 16 bytes.
  static constexpr bool ALIGNED_A = SDDMM_ALIGNED_A, ALIGNED_B = SDDMM_ALIGNED_B;
  // Whether rows are stored as segments (tile_kernel.cuh); else the number of nonzeros of each of
  // its rows whose columns a lane prefetches.
  static constexpr bool SEGMENTS = SDDMM_SEGMENTS;
  static constexpr int PREFETCH_DEPTH = SDDMM_PREFETCH_DEPTH;
  // The number of threads of a block, and of blocks that the registers of a multiprocessor must
  // hold.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
  // The number of bytes of dynamic shared memory of a block: the stages, and then the tile of sums.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Mainloop =
    gemm_core::MainloopWmma<float, Config::FRAGMENT_M, Config::FRAGMENT_N, Config::BLOCK_M,
                            Config::BLOCK_N, Config::BLOCK_K, Config::WARPS_M, Config::WARPS_N,
                            Config::STAGES, true, Config::PAD, false, true, Config::ALIGNED_A,
                            Config::ALIGNED_B>;
static_assert(Mainloop::THREADS == Config::THREADS, "the host launches all warps");
static_assert(Mainloop::SHARED_BYTES <= Config::SHARED_BYTES, "the stages fit");
static_assert(Config::BLOCK_M * Config::BLOCK_N * 4 <= Config::SHARED_BYTES, "the tile fits");

using Arguments = TileArguments<Config::Element, Config::Output>;
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(128) unsigned char shared[];
  compute_tile<Mainloop, Config::BLOCK_M, Config::BLOCK_N, Config::SEGMENTS,
               Config::PREFETCH_DEPTH>(
      p, shared, [](const Mainloop::Accumulators& acc, const auto& tile) {
        gemm_core::store_wmma<Mainloop, Config::FRAGMENT_M, Config::FRAGMENT_N>(acc, tile, 0, 0);
      });
}
