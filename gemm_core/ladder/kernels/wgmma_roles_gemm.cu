// wgmma GEMM by roles: adds a warpgroup that only loads to two that only multiply, each 64 rows of the
// tile. Further rungs of this source have larger tiles, blocks that stay for many tiles, clusters that
// share loads, and stores by TMA. Limit: the tensor cores rest while both consumers hand on their sums.
#include "gemm_core/epilogue_tma.cuh"
#include "gemm_core/wgmma_gemm.cuh"
#include "gemm_core/wgmma_roles.cuh"

using namespace gemm_core;

// What the host defines (gemm_core/ladder/spec.py).
struct Config {
  using Element = GEMM_ELEMENT;                                // of A and B
  using Output = GEMM_OUTPUT;                                  // of C
  static constexpr int BLOCK_M = GEMM_BLOCK_M;                 // rows of C per tile
  static constexpr int BLOCK_N = GEMM_BLOCK_N;                 // columns of C per tile
  static constexpr int BLOCK_K = GEMM_BLOCK_K;                 // elements of k per stage
  static constexpr int STAGES = GEMM_STAGES;                   // stages of the ring
  static constexpr int THREADS = GEMM_THREADS;                 // per block
  static constexpr int MIN_BLOCKS = GEMM_MIN_BLOCKS;           // that share a multiprocessor
  static constexpr int SHARED_BYTES = GEMM_SHARED_BYTES;       // dynamic, per block
  static constexpr int CLUSTER = GEMM_CLUSTER;                 // blocks that share the loads of B
  static constexpr int RASTER_GROUP = GEMM_RASTER_GROUP;       // tile rows per raster band
  static constexpr bool STORES_BY_TMA = GEMM_STORES_BY_TMA;    // C goes through shared memory
  static constexpr bool B_ROWS_ARE_N = GEMM_B_ROWS_ARE_N;      // B is stored as n rows of k
  static constexpr bool C_VEC2_ALIGNED = GEMM_C_VEC2_ALIGNED;  // rows of C start at even elements
};

using Stage = WgmmaStage<Config::Element, Config::BLOCK_M, Config::BLOCK_N, Config::CLUSTER,
                         Config::B_ROWS_ARE_N>;
using Schedule = TileSchedule<Config::RASTER_GROUP, Stage::BM, Stage::BN, Config::CLUSTER>;
// Each consumer has 64 rows, and all of them read every stage.
constexpr int CONSUMERS = Stage::BM / 64;
using Roles = WgmmaRoles<Stage, Schedule, Config::STAGES, Config::CLUSTER, CONSUMERS, CONSUMERS>;
// The ring, then each consumer's rows of C, then the barriers.
using TmaStore = EpilogueTma<Config::Output, 1, Stage::BN>;
constexpr int C_BYTES = Config::STORES_BY_TMA ? Roles::CONSUMERS * TmaStore::BYTES : 0;
constexpr int BARRIERS = Roles::RING_BYTES + C_BYTES;
static_assert(Stage::BK == Config::BLOCK_K, "a stage has rows of 128 bytes");
static_assert(Config::THREADS == Roles::THREADS, "the host launches all warpgroups");
static_assert(BARRIERS + Roles::BARRIER_BYTES <= Config::SHARED_BYTES,
              "the host reserves the ring, the consumers' parts of C and the barriers");

extern "C" __global__ void __cluster_dims__(Config::CLUSTER, 1, 1)
    __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    gemm(const __grid_constant__ WgmmaArguments<Config::Output> p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const u32 base = ptx::shared_address(shared);
  const Roles roles(base, base + BARRIERS);
  const Schedule schedule(p.m, p.n);
  roles.run(p.a, p.b, p.k, schedule, [&](int consumer, int k_blocks) {
    const TmaStore tma{p.c, base + Roles::RING_BYTES + consumer * TmaStore::BYTES, 1 + consumer};
    const EpilogueDense<Config::Output, Config::C_VEC2_ALIGNED> dense{p.out, p.pitch_c, p.m, p.n};
    Roles::Ring ring;
    for (Schedule tiles = schedule; tiles.has_tile(); tiles.advance()) {
      float sums[1][Stage::BN / 2];
      roles.multiply(sums, ring, 64 * consumer, k_blocks, [] {});
      const auto [m0, n0] = tiles.origin();
      if constexpr (Config::STORES_BY_TMA)
        tma.store(sums, m0 + 64 * consumer, n0);
      else
        store_wgmma_rows(sums, dense, m0 + 64 * consumer, n0);
    }
    if constexpr (Config::STORES_BY_TMA) TmaStore::finish();
  });
}
GEMM_CORE_CHECK_STRUCT(WgmmaArguments<Config::Output>)
