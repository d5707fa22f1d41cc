// SDDMM by dense tiles in exact float32: gemm_core's main loop on CUDA cores over the tiles that hold
// nonzeros; adds to row_gather that a tile's rows of a and b are loaded once for all of its nonzeros.
// Limit: one fused multiply-add a lane and clock for whole tiles, however few entries are sampled.
#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/mainloop_simt.cuh"
#include "sddmm/tile_kernel.cuh"

using namespace sddmm;

// What tile_simt/host.py and kernels/tile.py choose, by macro.
struct Config {
  // The types of the operands and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of rows and of columns of a tile, and of elements of k that a stage holds.
  static constexpr int BLOCK_M = SDDMM_BLOCK_M, BLOCK_N = SDDMM_BLOCK_N, BLOCK_K = SDDMM_BLOCK_K;
  // The number of warps down and across a tile.
  static constexpr int WARPS_M = SDDMM_WARPS_M, WARPS_N = SDDMM_WARPS_N;
  // The number of rows and of columns of sums that a thread computes.
  static constexpr int THREAD_M = SDDMM_THREAD_M, THREAD_N = SDDMM_THREAD_N;
  // The number of elements added to each row of a stage, against bank conflicts.
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
  // The number of bytes of dynamic shared memory of a block: two stages, and then the tile of sums.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Element = Config::Element;
using MainloopOfElements =
    gemm_core::MainloopSimt<Element, Config::BLOCK_M, Config::BLOCK_N, Config::BLOCK_K,
                            Config::WARPS_M, Config::WARPS_N, Config::THREAD_M, Config::THREAD_N,
                            2, 1, true, Config::PAD, true, true, Config::ALIGNED_A,
                            Config::ALIGNED_B>;

// The main loop as compute_tile calls it, with shared memory in bytes.
struct Mainloop : MainloopOfElements {
  static __device__ __forceinline__ void run(Accumulators& sums, unsigned char* shared,
                                             const Element* a, i64 pitch_a, const Element* b,
                                             i64 pitch_b, int m0, int n0, int m, int n, int k) {
    MainloopOfElements::run(sums, reinterpret_cast<Element*>(shared), a, pitch_a, b, pitch_b, m0,
                            n0, m, n, k);
  }
};
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
      p, shared, [](const Mainloop::Accumulators& sums, const auto& tile) {
        gemm_core::store_simt<Mainloop>(sums, tile, 0, 0);
      });
}
