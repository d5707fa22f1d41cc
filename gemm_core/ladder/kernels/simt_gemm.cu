// GEMM on CUDA cores: adds to the naive rung tiles in shared memory and a THREAD_M x THREAD_N tile of
// outputs in each thread's registers. Limit: one fused multiply-add a lane and clock, of floats or of
// pairs of halves, an eighth of the tensor cores' rate or less.
#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/mainloop_simt.cuh"
#include "gemm_core/parameters.cuh"
#include "gemm_core/raster.cuh"

using namespace gemm_core;

// What the host defines (gemm_core/ladder/spec.py).
struct Config {
  using Element = GEMM_ELEMENT;                                // of A and B
  using Output = GEMM_OUTPUT;                                  // of C
  static constexpr int BLOCK_M = GEMM_BLOCK_M;                 // rows of C per block
  static constexpr int BLOCK_N = GEMM_BLOCK_N;                 // columns of C per block
  static constexpr int BLOCK_K = GEMM_BLOCK_K;                 // elements of k per stage
  static constexpr int WARPS_M = GEMM_WARPS_M;                 // warps of a block along m
  static constexpr int WARPS_N = GEMM_WARPS_N;                 // warps of a block along n
  static constexpr int THREAD_M = GEMM_THREAD_M;               // rows of C per thread
  static constexpr int THREAD_N = GEMM_THREAD_N;               // columns of C per thread
  static constexpr int BUFFERS = GEMM_BUFFERS;                 // buffers in shared memory, 1 or 2
  static constexpr int VECTOR = GEMM_VECTOR;                   // elements per global memory access
  static constexpr bool ASYNC = GEMM_ASYNC;                    // loads by cp.async where possible
  static constexpr int PAD = GEMM_PAD;                         // elements added to each transposed row
  static constexpr bool SPREAD = GEMM_SPREAD;                  // groups of a thread are interleaved
  static constexpr int MIN_BLOCKS = GEMM_MIN_BLOCKS;           // blocks that share a multiprocessor
  static constexpr int THREADS = GEMM_THREADS;                 // per block
  static constexpr int SHARED_BYTES = GEMM_SHARED_BYTES;       // dynamic, per block
  static constexpr int RASTER_GROUP = GEMM_RASTER_GROUP;       // tile rows per raster band
  static constexpr bool B_ROWS_ARE_N = GEMM_B_ROWS_ARE_N;      // B is stored as n rows of k
  static constexpr bool ALIGNED_A = GEMM_ALIGNED_A;            // rows of A are 16-byte aligned
  static constexpr bool ALIGNED_B = GEMM_ALIGNED_B;            // rows of B are 16-byte aligned
  static constexpr bool C_VEC2_ALIGNED = GEMM_C_VEC2_ALIGNED;  // rows of C start at even elements
};

using Mainloop =
    MainloopSimt<Config::Element, Config::BLOCK_M, Config::BLOCK_N, Config::BLOCK_K,
                 Config::WARPS_M, Config::WARPS_N, Config::THREAD_M, Config::THREAD_N,
                 Config::BUFFERS, Config::VECTOR, Config::ASYNC, Config::PAD, Config::SPREAD,
                 Config::B_ROWS_ARE_N, Config::ALIGNED_A, Config::ALIGNED_B>;
static_assert(Mainloop::THREADS == Config::THREADS, "the host launches the warps of a block");
static_assert(Mainloop::SHARED_BYTES <= Config::SHARED_BYTES, "the host reserves all stages");

extern "C" __global__ void __launch_bounds__(Mainloop::THREADS, Config::MIN_BLOCKS)
    gemm(const Config::Element* __restrict__ a, const Config::Element* __restrict__ b,
         Config::Output* __restrict__ c, int m, int n, int k, i64 pitch_a, i64 pitch_b, i64 pitch_c) {
  extern __shared__ __align__(128) unsigned char shared[];
  const auto [m0, n0] = tile_origin<Config::RASTER_GROUP, Config::BLOCK_M, Config::BLOCK_N>(m, n);
  Mainloop::Accumulators sums = {};
  Mainloop::run(sums, reinterpret_cast<Config::Element*>(shared), a, pitch_a, b, pitch_b, m0, n0, m,
                n, k);
  const EpilogueDense<Config::Output, Config::C_VEC2_ALIGNED> epilogue{c, pitch_c, m, n};
  // Four at a time only where every row may take them: the test of each address costs registers.
  constexpr int neighbours = Config::C_VEC2_ALIGNED && Config::THREAD_N % 4 == 0 ? 4 : 2;
  store_simt<Mainloop, neighbours>(sums, epilogue, m0, n0);
}
GEMM_CORE_CHECK_LIST(gemm)
