// GEMM by WMMA: adds to the naive WMMA rung shared-memory tiles and several fragments a warp; its rungs
// add padding, cp.async, stages, prefetched fragments and a block order for L2. Limit: wmma loads
// fragments by rules of its own, and on Hopper it is mma.sync, at 60 % of the tensor cores' rate.
#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/mainloop_wmma.cuh"
#include "gemm_core/parameters.cuh"
#include "gemm_core/raster.cuh"

using namespace gemm_core;

// What the host defines (gemm_core/ladder/spec.py).
struct Config {
  using Element = GEMM_ELEMENT;                                // of A and B
  using Output = GEMM_OUTPUT;                                  // of C
  using Accumulator = GEMM_ACCUMULATOR;                        // float or f16
  static constexpr int FRAGMENT_M = GEMM_FRAGMENT_M;           // rows of a WMMA fragment
  static constexpr int FRAGMENT_N = GEMM_FRAGMENT_N;           // columns of a WMMA fragment
  static constexpr int BLOCK_M = GEMM_BLOCK_M;                 // rows of C per block
  static constexpr int BLOCK_N = GEMM_BLOCK_N;                 // columns of C per block
  static constexpr int BLOCK_K = GEMM_BLOCK_K;                 // elements of k per stage
  static constexpr int WARPS_M = GEMM_WARPS_M;                 // warps of a block along m
  static constexpr int WARPS_N = GEMM_WARPS_N;                 // warps of a block along n
  static constexpr int STAGES = GEMM_STAGES;                   // buffers in shared memory
  static constexpr bool ASYNC = GEMM_ASYNC;                    // cp.async, else registers
  static constexpr int PAD = GEMM_PAD;                         // halves added to each row
  static constexpr bool PREFETCH_FRAGMENTS = GEMM_PREFETCH_FRAGMENTS;  // of the next k step
  static constexpr int THREADS = GEMM_THREADS;                 // per block
  static constexpr int SHARED_BYTES = GEMM_SHARED_BYTES;       // dynamic, per block
  static constexpr int RASTER_GROUP = GEMM_RASTER_GROUP;       // tile rows per raster band
  static constexpr bool B_ROWS_ARE_N = GEMM_B_ROWS_ARE_N;      // B is stored as n rows of k
  static constexpr bool ALIGNED_A = GEMM_ALIGNED_A;            // rows of A are 16-byte aligned
  static constexpr bool ALIGNED_B = GEMM_ALIGNED_B;            // rows of B are 16-byte aligned
  static constexpr bool C_VEC2_ALIGNED = GEMM_C_VEC2_ALIGNED;  // rows of C start at even elements
};

using Mainloop =
    MainloopWmma<Config::Accumulator, Config::FRAGMENT_M, Config::FRAGMENT_N, Config::BLOCK_M,
                 Config::BLOCK_N, Config::BLOCK_K, Config::WARPS_M, Config::WARPS_N, Config::STAGES,
                 Config::ASYNC, Config::PAD, Config::PREFETCH_FRAGMENTS, Config::B_ROWS_ARE_N,
                 Config::ALIGNED_A, Config::ALIGNED_B>;
static_assert(Mainloop::THREADS == Config::THREADS, "the host launches the warps of a block");
static_assert(Mainloop::SHARED_BYTES <= Config::SHARED_BYTES, "the host reserves all stages");

extern "C" __global__ void __launch_bounds__(Mainloop::THREADS, 1)
    gemm(const Config::Element* __restrict__ a, const Config::Element* __restrict__ b,
         Config::Output* __restrict__ c, int m, int n, int k, i64 pitch_a, i64 pitch_b, i64 pitch_c) {
  extern __shared__ __align__(128) unsigned char shared[];
  const auto [m0, n0] = tile_origin<Config::RASTER_GROUP, Config::BLOCK_M, Config::BLOCK_N>(m, n);
  Mainloop::Accumulators sums = {};
  Mainloop::run(sums, shared, a, pitch_a, b, pitch_b, m0, n0, m, n, k);
  const EpilogueDense<Config::Output, Config::C_VEC2_ALIGNED> epilogue{c, pitch_c, m, n};
  store_wmma<Mainloop, Config::FRAGMENT_M, Config::FRAGMENT_N>(sums, epilogue, m0, n0);
}
GEMM_CORE_CHECK_LIST(gemm)
