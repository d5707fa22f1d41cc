// wgmma GEMM of floats by 3xTF32: adds to the mma.sync rung Hopper's own instruction, and warpgroups
// that split B once a block instead of once a warp; A is split on its way to registers. Limit: a third
// of the tensor cores' TF32 rate, and shared memory, which three fifths of that rate keep busy.
#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/mainloop_wgmma_tf32x3.cuh"
#include "gemm_core/parameters.cuh"
#include "gemm_core/raster.cuh"

using namespace gemm_core;

// What the host defines (gemm_core/ladder/spec.py).
struct Config {
  using Output = GEMM_OUTPUT;                                  // of C
  static constexpr int BLOCK_M = GEMM_BLOCK_M;                 // rows of C per block
  static constexpr int BLOCK_N = GEMM_BLOCK_N;                 // columns of C per block
  static constexpr int BLOCK_K = GEMM_BLOCK_K;                 // elements of k per stage
  static constexpr int STAGES = GEMM_STAGES;                   // stages of the ring
  static constexpr int THREADS = GEMM_THREADS;                 // per block
  static constexpr int SHARED_BYTES = GEMM_SHARED_BYTES;       // dynamic, per block
  static constexpr int RASTER_GROUP = GEMM_RASTER_GROUP;       // tile rows per raster band
  static constexpr bool B_ROWS_ARE_N = GEMM_B_ROWS_ARE_N;      // B is stored as n rows of k
  static constexpr bool ALIGNED_A = GEMM_ALIGNED_A;            // rows of A are 16-byte aligned
  static constexpr bool ALIGNED_B = GEMM_ALIGNED_B;            // rows of B are 16-byte aligned
  static constexpr bool C_VEC2_ALIGNED = GEMM_C_VEC2_ALIGNED;  // rows of C start at even elements
};

using Mainloop = MainloopWgmmaTf32x3<Config::STAGES, Config::B_ROWS_ARE_N, Config::ALIGNED_A,
                                     Config::ALIGNED_B>;
static_assert(Mainloop::BM == Config::BLOCK_M && Mainloop::BN == Config::BLOCK_N &&
              Mainloop::BK == Config::BLOCK_K, "the main loop has one tile");
static_assert(Mainloop::THREADS == Config::THREADS, "the host launches the warps of a block");
static_assert(Mainloop::SHARED_BYTES <= Config::SHARED_BYTES, "the host reserves all stages");

extern "C" __global__ void __launch_bounds__(Mainloop::THREADS, 1)
    gemm(const float* __restrict__ a, const float* __restrict__ b, Config::Output* __restrict__ c,
         int m, int n, int k, i64 pitch_a, i64 pitch_b, i64 pitch_c) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const auto origin = [=] {
    return tile_origin<Config::RASTER_GROUP, Mainloop::BM, Mainloop::BN>(m, n);
  };
  const auto [m0, n0] = origin();
  Mainloop::run(shared, a, pitch_a, b, pitch_b, m0, n0, m, n, k,
                [&](const Mainloop::Accumulators& sums) {
                  // Computed again: the main loop leaves no register in which to keep the origin.
                  const TileOrigin tile = origin();
                  const EpilogueDense<Config::Output, Config::C_VEC2_ALIGNED> epilogue{c, pitch_c,
                                                                                       m, n};
                  store_wgmma<Mainloop>(sums, epilogue, tile.m0, tile.n0);
                },
                [] {});
}
GEMM_CORE_CHECK_LIST(gemm)
