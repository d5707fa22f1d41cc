// SDDMM by dense tiles in exact float32: gemm_core's main loop on CUDA cores over the tiles that hold
// nonzeros; adds to row_gather that a tile's rows of a and b are loaded once for all of its nonzeros.
// Limit: one fused multiply-add a lane and clock for whole tiles, however few entries are sampled.
#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/mainloop_simt.cuh"
#include "gemm_core/mainloop_simt_pipelined.cuh"
#include "gemm_core/mainloop_simt_rows.cuh"
#include "sddmm/tile_kernel.cuh"

using namespace sddmm;

// The main loops that host.py names.
enum class Loop { TWO_BUFFERS, PIPELINED, ROWS };

// What tile_simt/host.py and kernels/tile.py choose, by macro.
struct Config {
  // The types of the operands and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  static constexpr Loop MAINLOOP = Loop::SDDMM_MAINLOOP;
  // The number of rows and of columns of a tile, and of elements of k that a stage holds.
  static constexpr int BLOCK_M = SDDMM_BLOCK_M, BLOCK_N = SDDMM_BLOCK_N, BLOCK_K = SDDMM_BLOCK_K;
  // The number of warps down and across a tile.
  static constexpr int WARPS_M = SDDMM_WARPS_M, WARPS_N = SDDMM_WARPS_N;
  // The number of rows and of columns of sums that a thread computes.
  static constexpr int THREAD_M = SDDMM_THREAD_M, THREAD_N = SDDMM_THREAD_N;
  // The number of elements added to each row of a stage, against bank conflicts.
  static constexpr int PAD = SDDMM_PAD;
  // The number of stages in shared memory, and of slices of the warps that each multiply a part of
  // each stage.
  static constexpr int STAGES = SDDMM_STAGES, SLICES = SDDMM_SLICES;
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

using Element = Config::Element;
constexpr int BM = Config::BLOCK_M, BN = Config::BLOCK_N, BK = Config::BLOCK_K;

// Two buffers with k outermost; the fewest registers, so that many blocks share a multiprocessor.
struct TwoBuffers
    : gemm_core::MainloopSimt<Element, BM, BN, BK, Config::WARPS_M, Config::WARPS_N,
                              Config::THREAD_M, Config::THREAD_N, 2, 1, true, Config::PAD, true,
                              true, Config::ALIGNED_A, Config::ALIGNED_B> {
  static constexpr bool COLUMNS_ARE_PAIRED = true;
  static __device__ __forceinline__ void run(Accumulators& sums, unsigned char* shared,
                                             const Element* a, i64 pitch_a, const Element* b,
                                             i64 pitch_b, int m0, int n0, int m, int n, int k) {
    TwoBuffers::MainloopSimt::run(sums, reinterpret_cast<Element*>(shared), a, pitch_a, b, pitch_b,
                                  m0, n0, m, n, k);
  }
};
// The highest rate, by many sums per thread.
using Pipelined =
    gemm_core::MainloopSimtPipelined<BM, BN, BK, Config::WARPS_M, Config::WARPS_N,
                                     Config::THREAD_M, Config::THREAD_N, Config::STAGES,
                                     Config::SLICES>;
// The least to wait for before the first product, where tiles are small.
using Rows = gemm_core::MainloopSimtRows<BM, BN, BK, Config::WARPS_M, Config::WARPS_N,
                                         Config::THREAD_M, Config::THREAD_N, Config::STAGES,
                                         Config::ALIGNED_A, Config::ALIGNED_B>;
using Mainloop = gemm_core::Select<
    Config::MAINLOOP == Loop::TWO_BUFFERS, TwoBuffers,
    gemm_core::Select<Config::MAINLOOP == Loop::PIPELINED, Pipelined, Rows>::type>::type;
static_assert(Mainloop::THREADS == Config::THREADS, "the host launches all warps");
static_assert(Config::SLICES == 1 || Config::MAINLOOP == Loop::PIPELINED, "others have one slice");
static_assert(Mainloop::SHARED_BYTES <= Config::SHARED_BYTES, "the stages fit");
static_assert(BM * BN * 4 <= Config::SHARED_BYTES, "the tile fits");

using Arguments = TileArguments<Element, Config::Output>;
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(128) unsigned char shared[];
  compute_tile<Mainloop, BM, BN, Config::SEGMENTS, Config::PREFETCH_DEPTH>(
      p, shared, [](const Mainloop::Accumulators& sums, const auto& tile) {
        if (threadIdx.x >= Config::THREADS / Config::SLICES) return;  // the first slice has the sums
        if constexpr (Mainloop::COLUMNS_ARE_PAIRED) {
          gemm_core::store_simt<Mainloop>(sums, tile, 0, 0);
        } else {
#pragma unroll
          for (int i = 0; i < Mainloop::THREAD_M; ++i)
#pragma unroll
            for (int j = 0; j < Mainloop::THREAD_N; ++j)
              tile(Mainloop::row_of(i), Mainloop::column_of(j), sums[i][j]);
        }
      });
}
