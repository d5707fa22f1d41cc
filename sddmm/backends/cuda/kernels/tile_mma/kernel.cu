// SDDMM by dense tiles: gemm_core's mma.sync main loop over the tiles that hold nonzeros; adds an
// epilogue that stores the sampled entries only. Limit: the rate of the tensor cores for whole
// tiles, however few of their entries are sampled.
#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/mainloop_mma.cuh"
#include "gemm_core/mainloop_mma_short.cuh"
#include "sddmm/tile_kernel.cuh"

using namespace sddmm;

// What tile_mma/host.py and kernels/tile.py choose, by macro.
struct Config {
  // The types of the operands and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of rows and of columns of a tile, and of elements of k that a stage holds.
  static constexpr int BLOCK_M = SDDMM_BLOCK_M, BLOCK_N = SDDMM_BLOCK_N, BLOCK_K = SDDMM_BLOCK_K;
  // The number of warps down and across a tile.
  static constexpr int WARPS_M = SDDMM_WARPS_M, WARPS_N = SDDMM_WARPS_N;
  // The number of stages of the ring in shared memory; 1 if BLOCK_K elements are all of k.
  static constexpr int STAGES = SDDMM_STAGES;
  // Whether all rows of a, or of b, start at multiples of 16 bytes.
  static constexpr bool ALIGNED_A = SDDMM_ALIGNED_A, ALIGNED_B = SDDMM_ALIGNED_B;
  // Whether float32 operands are split into three TF32 products (tf32x3).
  static constexpr bool SPLIT = SDDMM_SPLIT;
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

using Element = Config::Element;
using Ring = gemm_core::MainloopMma<Element, Config::BLOCK_M, Config::BLOCK_N, Config::BLOCK_K,
                                    Config::WARPS_M, Config::WARPS_N, Config::STAGES, true,
                                    Config::ALIGNED_A, Config::ALIGNED_B, Config::SPLIT>;
using Short = gemm_core::MainloopMmaShort<Element, Config::BLOCK_M, Config::BLOCK_N,
                                          Config::BLOCK_K, Config::WARPS_M, Config::WARPS_N,
                                          Config::ALIGNED_A, Config::ALIGNED_B>;
using Mainloop = gemm_core::Select<Config::STAGES == 1, Short, Ring>::type;
static_assert(Mainloop::THREADS == Config::THREADS, "the host launches all warps");
static_assert(Mainloop::SHARED_BYTES <= Config::SHARED_BYTES, "the stages fit");
static_assert(Config::BLOCK_M * Config::BLOCK_N * 4 <= Config::SHARED_BYTES, "the tile fits");

using Arguments = TileArguments<Element, Config::Output>;
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(128) unsigned char shared[];
  compute_tile<Mainloop, Config::BLOCK_M, Config::BLOCK_N, Config::SEGMENTS,
               Config::PREFETCH_DEPTH>(
      p, shared, [](const Mainloop::Accumulators& acc, const auto& tile) {
        gemm_core::store_mma<Mainloop>(acc, tile, 0, 0);
      });
}
