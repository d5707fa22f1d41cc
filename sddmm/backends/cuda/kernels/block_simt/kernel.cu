// SDDMM of full blocks in exact float32: gemm_core's main loop on CUDA cores over the tiles of each
// block; adds an epilogue that stores rows of the tile straight from registers, without a list of
// nonzeros. Limit: one fused multiply-add a lane and clock.
#include "gemm_core/mainloop_simt.cuh"
#include "sddmm/block_tile.cuh"

using namespace sddmm;

// What block_simt/host.py chooses, by macro.
struct Config {
  // The types of the operands and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of rows and of columns of a tile, and of elements of k that a stage holds.
  static constexpr int TILE_M = SDDMM_TILE_M, TILE_N = SDDMM_TILE_N, TILE_K = SDDMM_TILE_K;
  // The number of warps down and across a tile.
  static constexpr int WARPS_M = SDDMM_WARPS_M, WARPS_N = SDDMM_WARPS_N;
  // The number of rows and of columns of sums that a thread holds.
  static constexpr int THREAD_M = SDDMM_THREAD_M, THREAD_N = SDDMM_THREAD_N;
  // Whether all rows of a, or of b, start at multiples of 16 bytes.
  static constexpr bool ALIGNED_A = SDDMM_ALIGNED_A, ALIGNED_B = SDDMM_ALIGNED_B;
  // The number of threads of a block, and of blocks that the registers of a multiprocessor hold.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
  // The number of bytes of dynamic shared memory of a block: both buffers of both operands.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

// Two buffers, filled by cp.async; transposed rows are 4 elements longer, against bank conflicts.
using Mainloop = gemm_core::MainloopSimt<Config::Element, Config::TILE_M, Config::TILE_N,
                                         Config::TILE_K, Config::WARPS_M, Config::WARPS_N,
                                         Config::THREAD_M, Config::THREAD_N, 2, 4, true, 4, true,
                                         true, Config::ALIGNED_A, Config::ALIGNED_B>;
static_assert(Mainloop::THREADS == Config::THREADS, "the host launches all warps");
static_assert(Mainloop::SHARED_BYTES <= Config::SHARED_BYTES, "the buffers fit");

using Arguments = BlockArguments<Config::Element, Config::Output>;
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const BlockTile<Config::TILE_M, Config::TILE_N> tile(p, blockIdx.x);
  Mainloop::Accumulators sums = {};
  Mainloop::run(sums, reinterpret_cast<Config::Element*>(shared), p.a + tile.head * p.head_a,
                p.pitch_a, p.b + tile.head * p.head_b, p.pitch_b, tile.m0, tile.n0,
                tile.m0 + tile.rows, tile.n0 + tile.columns, p.k);

  // A thread's columns are groups of neighbours.
  constexpr int PER_16_BYTES = 16 / sizeof(Config::Output);
  constexpr int WIDTH = Mainloop::GROUP_N < PER_16_BYTES ? Mainloop::GROUP_N : PER_16_BYTES;
  const BlockStore<Config::Element, Config::Output, WIDTH> block_store(p, tile);
  block_store.all([&](const auto& visit) {
#pragma unroll
    for (int i = 0; i < Mainloop::THREAD_M; ++i)
#pragma unroll
      for (int j = 0; j < Mainloop::THREAD_N; j += WIDTH) {
        float visited[WIDTH];
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) visited[e] = sums[i][j + e];
        visit(Mainloop::row_of(i), Mainloop::column_of(j), visited);
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) sums[i][j + e] = visited[e];
      }
  });
}
