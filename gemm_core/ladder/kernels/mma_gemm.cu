// mma.sync GEMM: adds to the WMMA rungs ldmatrix with an XOR swizzle (no padding), explicit fragments
// and a k step ahead in registers. Limit on Hopper: mma.sync feeds the tensor cores at about 60 % of
// what wgmma does.
#include "gemm_core/epilogue_dense.cuh"
#include "gemm_core/mainloop_mma.cuh"
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
  static constexpr int STAGES = GEMM_STAGES;                   // stages of the cp.async ring
  static constexpr int THREADS = GEMM_THREADS;                 // per block
  static constexpr int SHARED_BYTES = GEMM_SHARED_BYTES;       // dynamic, per block
  static constexpr int RASTER_GROUP = GEMM_RASTER_GROUP;       // tile rows per raster band
  static constexpr bool B_ROWS_ARE_N = GEMM_B_ROWS_ARE_N;      // B is stored as n rows of k
  static constexpr bool ALIGNED_A = GEMM_ALIGNED_A;            // rows of A are 16-byte aligned
  static constexpr bool ALIGNED_B = GEMM_ALIGNED_B;            // rows of B are 16-byte aligned
  static constexpr bool C_VEC2_ALIGNED = GEMM_C_VEC2_ALIGNED;  // rows of C start at even elements
  static constexpr bool SPLIT_TF32 = GEMM_SPLIT_TF32;          // floats by 3xTF32, else by TF32
};

using Mainloop = MainloopMma<Config::Element, Config::BLOCK_M, Config::BLOCK_N, Config::BLOCK_K,
                             Config::WARPS_M, Config::WARPS_N, Config::STAGES, Config::B_ROWS_ARE_N,
                             Config::ALIGNED_A, Config::ALIGNED_B, Config::SPLIT_TF32>;
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
  store_mma<Mainloop>(sums, epilogue, m0, n0);
}
GEMM_CORE_CHECK_LIST(gemm)
