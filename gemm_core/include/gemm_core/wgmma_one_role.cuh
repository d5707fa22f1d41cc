// The main loop of a wgmma kernel without roles: all threads multiply, and one of them also loads.
#pragma once

#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/mbarrier.cuh"
#include "gemm_core/stage_barriers.cuh"

namespace gemm_core {

// Stage: a WgmmaStage without a cluster. STAGES: of the ring, at shared address `base`. PENDING: the
// stages whose products may still run while the next stage is loaded, 0 or 1.
template <class Stage, int STAGES, int PENDING>
struct WgmmaOneRole {
  static_assert(PENDING < STAGES, "a stage is loaded while others are multiplied");
  static constexpr int THREADS = 128 * (Stage::BM / 64);  // a warpgroup has 64 rows
  static constexpr int RING_BYTES = STAGES * Stage::BYTES;
  static constexpr int BARRIER_BYTES = STAGES * StageBarriers::BYTES;
  u32 base;

  // First row, in the tile, of this thread's warpgroup.
  static __device__ __forceinline__ int first_row() { return threadIdx.x / 128 * 64; }

  // Adds up the products of k blocks first .. last - 1 of the tile at (m0, n0), by all threads of the
  // block, once. Leaves `sums` as they are if there are no k blocks. Nobody reads the ring any more
  // when it returns.
  __device__ __forceinline__ void multiply(float (&sums)[1][Stage::BN / 2], const ptx::TensorMap& a,
                                           const ptx::TensorMap& b, int m0, int n0, int first,
                                           int last) const {
    const StageBarriers full_barriers{base + RING_BYTES};
    if (threadIdx.x == 0) ptx::prefetch_map(a), ptx::prefetch_map(b);
    if (threadIdx.x < STAGES) ptx::mbarrier_init(full_barriers[threadIdx.x], 1);
    ptx::fence_proxy_async();  // makes the barriers visible to TMA
    __syncthreads();
    RingPosition<STAGES> to_load, to_multiply;
    const auto load = [&](int k_block) {
      if (threadIdx.x == 0 && k_block < last) {
        const u32 barrier = full_barriers[to_load.stage];
        ptx::mbarrier_arrive_expect_tx(barrier, Stage::BYTES);
        Stage::load(base + to_load.stage * Stage::BYTES, a, b, m0, n0, k_block * Stage::BK, 0,
                    barrier);
      }
      to_load.advance();
    };
    constexpr int ahead = STAGES - PENDING;  // stages without operands of products that still run
    for (int i = 0; i < ahead; ++i) load(first + i);
    for (int k_block = first; k_block < last; ++k_block) {
      ptx::mbarrier_wait(full_barriers[to_multiply.stage], to_multiply.phase);
      ptx::wgmma_fence();
      Stage::multiply(sums, base + to_multiply.stage * Stage::BYTES, first_row(), k_block > first);
      ptx::wgmma_commit();
      ptx::wgmma_wait<PENDING>();
      to_multiply.advance();
      if (k_block + ahead >= last) continue;
      __syncthreads();  // all have read the stage that is loaded next
      load(k_block + ahead);
    }
    ptx::wgmma_wait<0>();
    __syncthreads();
  }
};

}  // namespace gemm_core
