// The roles of the warpgroups of a wgmma kernel: the first only loads, one or two only multiply.
#pragma once

#include "gemm_core/ptx/cluster.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/mbarrier.cuh"
#include "gemm_core/ptx/setmaxnreg.cuh"
#include "gemm_core/stage_barriers.cuh"

namespace gemm_core {

// Stage: a WgmmaStage; Schedule: a TileSchedule. STAGES: of the ring. CLUSTER: blocks that share the
// loads of B. READERS: the consumers of a block that read one stage.
template <class Stage, class Schedule, int STAGES, int CLUSTER, int CONSUMERS_, int READERS>
struct WgmmaRoles {
  static constexpr int CONSUMERS = CONSUMERS_, THREADS = 128 * (1 + CONSUMERS);
  static constexpr int RING_BYTES = STAGES * Stage::BYTES;
  static constexpr int BARRIER_BYTES = 2 * STAGES * StageBarriers::BYTES;
  using Ring = RingPosition<STAGES>;

  u32 base;  // shared address of the ring
  StageBarriers full_barriers, empty_barriers;

  __device__ __forceinline__ WgmmaRoles(u32 base_, u32 barriers)
      : base(base_),
        full_barriers{barriers},
        empty_barriers{barriers + STAGES * StageBarriers::BYTES} {}

  // Runs the kernel, by all threads of the block: loads the operands a and b of all tiles, k > 0, and
  // calls consume(consumer, k_blocks) in each thread of the consumers, warpgroups that count from 0.
  template <class Consume>
  __device__ __forceinline__ void run(const ptx::TensorMap& a, const ptx::TensorMap& b, int k,
                                      const Schedule& schedule, Consume consume) const {
    if (threadIdx.x == 0) ptx::prefetch_map(a), ptx::prefetch_map(b);
    if (threadIdx.x < STAGES) {
      ptx::mbarrier_init(full_barriers[threadIdx.x], 1);
      ptx::mbarrier_init(empty_barriers[threadIdx.x], READERS * CLUSTER);
    }
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();  // also makes the barriers visible to TMA
    ptx::cluster_sync();
    __syncthreads();
    const int k_blocks = (k + Stage::BK - 1) / Stage::BK;
    // Producer and consumer must be the two branches of a single `if` that lasts to the end of the
    // kernel; otherwise ptxas ignores the setmaxnreg budget.
    if (threadIdx.x < 128) {
      if constexpr (CONSUMERS > 1) ptx::registers_release<40>();
      if (threadIdx.x == 0) produce(a, b, schedule, k_blocks);
    } else {
      if constexpr (CONSUMERS > 1) ptx::registers_claim<232>();
      // A shuffle shows the compiler that the warpgroup is uniform; otherwise each wgmma waits for
      // its own descriptor.
      consume(__shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0) - 1, k_blocks);
    }
    // A block must not exit while its peer can still write to its shared memory.
    __syncwarp();
    ptx::cluster_sync();
  }

  // Multiplies the next k_blocks stages, rows first_row .. of their tiles of A, into `sums`; called by
  // a consumer. issued() is called before the last products are waited for.
  template <int ROW_BLOCKS, class Issued>
  __device__ __forceinline__ void multiply(float (&sums)[ROW_BLOCKS][Stage::BN / 2], Ring& ring,
                                           int first_row, int k_blocks, Issued issued) const {
    u32 previous_stage = 0;
    for (int k_block = 0; k_block < k_blocks; ++k_block, ring.advance()) {
      ptx::mbarrier_wait(full_barriers[ring.stage], ring.phase);
      ptx::wgmma_fence();
      Stage::multiply(sums, base + ring.stage * Stage::BYTES, first_row, k_block > 0);
      ptx::wgmma_commit();
      if (k_block > 0) {
        ptx::wgmma_wait<1>();
        release(empty_barriers[previous_stage]);
      }
      previous_stage = ring.stage;
    }
    issued();
    ptx::wgmma_wait<0>();
    release(empty_barriers[previous_stage]);
  }

 private:
  // Fills the stages of all tiles of this block, one after the other; called by one thread.
  __device__ __forceinline__ void produce(const ptx::TensorMap& a, const ptx::TensorMap& b,
                                          Schedule schedule, int k_blocks) const {
    Ring ring;
    for (; schedule.has_tile(); schedule.advance()) {
      const auto [m0, n0] = schedule.origin();
      for (int k_block = 0; k_block < k_blocks; ++k_block, ring.advance()) {
        ptx::mbarrier_wait(empty_barriers[ring.stage], ring.phase ^ 1);
        ptx::mbarrier_arrive_expect_tx(full_barriers[ring.stage], Stage::BYTES);
        Stage::load(base + ring.stage * Stage::BYTES, a, b, m0, n0, k_block * Stage::BK,
                    schedule.rank, full_barriers[ring.stage]);
      }
    }
  }

  // Signals the producers of all blocks of the cluster, which write to the stage: this warpgroup has
  // read it.
  static __device__ __forceinline__ void release(u32 empty_barrier) {
    if constexpr (CLUSTER == 1) {
      if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(empty_barrier);
    } else {
      if (threadIdx.x % 128 < CLUSTER)
        ptx::mbarrier_arrive_cluster(empty_barrier, threadIdx.x % 128);
    }
  }
};

}  // namespace gemm_core
