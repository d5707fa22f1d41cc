// wgmma GEMM: adds Hopper's two units of its own to the mma.sync rungs. TMA copies whole tiles without
// any thread's addresses, and wgmma multiplies them straight from shared memory. Limit: all threads
// wait for the products of a stage before one of them asks for the next, so the units take turns.
#include "gemm_core/epilogue_tma.cuh"
#include "gemm_core/wgmma_gemm.cuh"
#include "gemm_core/wgmma_one_role.cuh"

using namespace gemm_core;

// What the host defines (gemm_core/ladder/spec.py).
struct Config {
  using Element = GEMM_ELEMENT;                                // of A and B
  using Output = GEMM_OUTPUT;                                  // of C
  static constexpr int BLOCK_M = GEMM_BLOCK_M;                 // rows of C per block
  static constexpr int BLOCK_N = GEMM_BLOCK_N;                 // columns of C per block
  static constexpr int BLOCK_K = GEMM_BLOCK_K;                 // elements of k per stage
  static constexpr int STAGES = GEMM_STAGES;                   // stages of the ring
  static constexpr int PENDING = GEMM_PENDING;                 // stages still multiplied as one loads
  static constexpr int THREADS = GEMM_THREADS;                 // per block
  static constexpr int MIN_BLOCKS = GEMM_MIN_BLOCKS;           // that share a multiprocessor
  static constexpr int SHARED_BYTES = GEMM_SHARED_BYTES;       // dynamic, per block
  static constexpr int RASTER_GROUP = GEMM_RASTER_GROUP;       // tile rows per raster band
  static constexpr bool STORES_BY_TMA = GEMM_STORES_BY_TMA;    // C goes through shared memory
  static constexpr bool B_ROWS_ARE_N = GEMM_B_ROWS_ARE_N;      // B is stored as n rows of k
  static constexpr bool C_VEC2_ALIGNED = GEMM_C_VEC2_ALIGNED;  // rows of C start at even elements
};

using Stage = WgmmaStage<Config::Element, Config::BLOCK_M, Config::BLOCK_N, 1, Config::B_ROWS_ARE_N>;
using Mainloop = WgmmaOneRole<Stage, Config::STAGES, Config::PENDING>;
// The rows of C of a warpgroup take the place of the stages.
using TmaStore = EpilogueTma<Config::Output, 1, Stage::BN>;
static_assert(!Config::STORES_BY_TMA || Stage::BM / 64 * TmaStore::BYTES <= Mainloop::RING_BYTES,
              "the stages leave room for C");
static_assert(Stage::BK == Config::BLOCK_K, "a stage has rows of 128 bytes");
static_assert(Config::THREADS == Mainloop::THREADS, "a warpgroup multiplies 64 rows");
static_assert(Mainloop::RING_BYTES + Mainloop::BARRIER_BYTES <= Config::SHARED_BYTES,
              "the host reserves all stages and their barriers");

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    gemm(const __grid_constant__ WgmmaArguments<Config::Output> p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const TileOrigin tile = tile_origin<Config::RASTER_GROUP, Stage::BM, Stage::BN>(p.m, p.n);
  float sums[1][Stage::BN / 2];
  Mainloop{ptx::shared_address(shared)}.multiply(sums, p.a, p.b, tile.m0, tile.n0, 0,
                                                 (p.k + Stage::BK - 1) / Stage::BK);
  const int m0 = tile.m0 + Mainloop::first_row();
  if constexpr (Config::STORES_BY_TMA) {
    const int warpgroup = threadIdx.x / 128;
    const TmaStore tma{p.c, ptx::shared_address(shared) + warpgroup * TmaStore::BYTES, 1 + warpgroup};
    tma.store(sums, m0, tile.n0);
    TmaStore::finish();
  } else {
    const EpilogueDense<Config::Output, Config::C_VEC2_ALIGNED> dense{p.out, p.pitch_c, p.m, p.n};
    store_wgmma_rows(sums, dense, m0, tile.n0);
  }
}
GEMM_CORE_CHECK_STRUCT(WgmmaArguments<Config::Output>)
