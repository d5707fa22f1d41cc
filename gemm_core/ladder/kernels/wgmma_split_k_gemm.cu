// wgmma GEMM with k split among the blocks of a cluster, for products with few tiles: adds blocks to a
// tile instead of tiles to a block. Each block adds up a part of the rows from the shared memory of all
// of them, in the order of k. Limit: the tile of sums that each block writes and its peers read.
#include "gemm_core/ptx/cluster.cuh"
#include "gemm_core/wgmma_gemm.cuh"
#include "gemm_core/wgmma_one_role.cuh"

using namespace gemm_core;

// What the host defines (gemm_core/ladder/spec.py).
struct Config {
  using Element = GEMM_ELEMENT;                                // of A and B
  using Output = GEMM_OUTPUT;                                  // of C
  static constexpr int BLOCK_M = GEMM_BLOCK_M;                 // rows of C per cluster
  static constexpr int BLOCK_N = GEMM_BLOCK_N;                 // columns of C per cluster
  static constexpr int BLOCK_K = GEMM_BLOCK_K;                 // elements of k per stage
  static constexpr int STAGES = GEMM_STAGES;                   // stages of the ring
  static constexpr int PENDING = GEMM_PENDING;                 // stages still multiplied as one loads
  static constexpr int THREADS = GEMM_THREADS;                 // per block
  static constexpr int SHARED_BYTES = GEMM_SHARED_BYTES;       // dynamic, per block
  static constexpr int SPLIT_K = GEMM_SPLIT_K;                 // blocks of a cluster
  static constexpr int RASTER_GROUP = GEMM_RASTER_GROUP;       // tile rows per raster band
  static constexpr bool B_ROWS_ARE_N = GEMM_B_ROWS_ARE_N;      // B is stored as n rows of k
  static constexpr bool C_VEC2_ALIGNED = GEMM_C_VEC2_ALIGNED;  // rows of C start at even elements
};

using Stage = WgmmaStage<Config::Element, Config::BLOCK_M, Config::BLOCK_N, 1, Config::B_ROWS_ARE_N>;
using Mainloop = WgmmaOneRole<Stage, Config::STAGES, Config::PENDING>;
// Four floats more than a row: the rows that a warp writes at once start in different banks.
constexpr int PITCH = Stage::BN + 4;
static_assert(Stage::BK == Config::BLOCK_K, "a stage has rows of 128 bytes");
static_assert(Config::THREADS == Mainloop::THREADS, "a warpgroup multiplies 64 rows");
static_assert(Mainloop::RING_BYTES + Mainloop::BARRIER_BYTES <= Config::SHARED_BYTES,
              "the host reserves all stages and their barriers");
static_assert(Stage::BM * PITCH * sizeof(float) <= Mainloop::RING_BYTES,
              "the sums take the place of the stages");

extern "C" __global__ void __cluster_dims__(Config::SPLIT_K, 1, 1)
    __launch_bounds__(Config::THREADS, 1)
    gemm(const __grid_constant__ WgmmaArguments<Config::Output> p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const u32 base = ptx::shared_address(shared);
  const int rank = ptx::cluster_rank();
  const int tiles_m = (p.m + Stage::BM - 1) / Stage::BM, tiles_n = (p.n + Stage::BN - 1) / Stage::BN;
  const TileIndex tile =
      raster<Config::RASTER_GROUP>(ptx::block_index() / Config::SPLIT_K, tiles_m, tiles_n);
  const int m0 = tile.m * Stage::BM, n0 = tile.n * Stage::BN;
  const int k_blocks = (p.k + Stage::BK - 1) / Stage::BK;
  // Each block has the same number of k blocks or one less; the first blocks of a cluster may have
  // none.
  const int first = static_cast<int>(static_cast<i64>(k_blocks) * rank / Config::SPLIT_K);
  const int last = static_cast<int>(static_cast<i64>(k_blocks) * (rank + 1) / Config::SPLIT_K);
  float sums[1][Stage::BN / 2];
  Mainloop{base}.multiply(sums, p.a, p.b, m0, n0, first, last);
  // Sums that are set before the loop would make each wgmma wait for the one before.
  if (first == last)
    for (float& sum : sums[0]) sum = 0;

  float* const tile_sums = reinterpret_cast<float*>(shared);
  const auto write = [&](int row, int column, float v0, float v1) {
    *reinterpret_cast<float2*>(tile_sums + row * PITCH + column) = make_float2(v0, v1);
  };
  store_wgmma_rows(sums, write, Mainloop::first_row(), 0);
  ptx::cluster_sync_memory();

  // Four neighbours of a row a thread; the rows are dealt out to the blocks.
  constexpr int vectors = Stage::BN / 4, rows_at_once = Config::THREADS / vectors;
  static_assert(Config::THREADS % vectors == 0, "a thread keeps its columns");
  const EpilogueDense<Config::Output, Config::C_VEC2_ALIGNED> epilogue{p.out, p.pitch_c, p.m, p.n};
  const int column = threadIdx.x % vectors * 4;
  for (int row = rank * rows_at_once + threadIdx.x / vectors; row < Stage::BM;
       row += Config::SPLIT_K * rows_at_once) {
    float4 sum = make_float4(0, 0, 0, 0);
    for (int from = 0; from < Config::SPLIT_K; ++from) {
      const float4 part = ptx::load_from_cluster(base + (row * PITCH + column) * sizeof(float), from);
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    epilogue(m0 + row, n0 + column, sum.x, sum.y);
    epilogue(m0 + row, n0 + column + 2, sum.z, sum.w);
  }
  // A block must not exit while its peers can still read its shared memory.
  ptx::cluster_sync_memory();
}
GEMM_CORE_CHECK_STRUCT(WgmmaArguments<Config::Output>)
