// Compares the caller's index arrays with the copies that a cached pattern holds; every block
// compares a share of both, and the last block to finish writes one word that the host polls.
// Limit: the bytes of both, loaded once.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"
#include "sddmm/warp.cuh"

using namespace sddmm;
using gemm_core::i64;
using gemm_core::u32;

// What comparison.py chooses, by macro.
struct Config {
  // The type of the indices: int or i64.
  using IndexType = SDDMM_INDEX;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
  // The values of the result; the host sets another before the launch.
  static constexpr int SAME = SDDMM_SAME, DIFFERENT = SDDMM_DIFFERENT;
};

using IndexType = Config::IndexType;
constexpr int THREADS = Config::THREADS;

struct Arguments {
  const IndexType *cached_major, *cached_cols, *caller_major, *caller_cols;
  // The number of warps that saw a difference, and of finished blocks; both 0 between launches.
  u32* state;
  volatile i64* result;  // pinned host memory
  i64 major_length, nnz;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// Whether this thread sees a difference among its entries of two arrays.
__device__ __forceinline__ bool differs(const IndexType* cached, const IndexType* caller,
                                        i64 length) {
  bool different = false;
  const i64 step = static_cast<i64>(gridDim.x) * THREADS;
#pragma unroll 4
  for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; i < length; i += step)
    different |= cached[i] != caller[i];
  return different;
}

extern "C" __global__ void __launch_bounds__(THREADS) sddmm_kernel(const Arguments p) {
  const bool different = differs(p.cached_major, p.caller_major, p.major_length) |
                         differs(p.cached_cols, p.caller_cols, p.nnz);
  if (!__all_sync(FULL_MASK, !different) && threadIdx.x % 32 == 0) atomicAdd(p.state, 1u);
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(p.state + 1, 1u) + 1 < gridDim.x) return;
  __threadfence();
  const u32 different_warps = atomicAdd(p.state, 0u);
  p.state[0] = p.state[1] = 0;
  // The host may launch again as soon as it sees the result: the zeros must be visible before it.
  __threadfence_system();
  *p.result = different_warps == 0 ? Config::SAME : Config::DIFFERENT;
}
