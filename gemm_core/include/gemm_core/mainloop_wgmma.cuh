// Main loop on wgmma for 16-bit operands: a producer thread fills a ring of stages by TMA, and two
// consumer warpgroups multiply the stages, tile after tile. Any m and n, k > 0; sm_90a.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/cluster.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/mbarrier.cuh"
#include "gemm_core/ptx/setmaxnreg.cuh"
#include "gemm_core/ptx/tma.cuh"
#include "gemm_core/ptx/wgmma_half.cuh"
#include "gemm_core/stage_barriers.cuh"

namespace gemm_core {

// BM x BN tiles of A B by clusters of two blocks. Both operands are rows of k, each a tensor map of
// boxes of 64 elements under the 128-byte swizzle. The two tiles of a cluster usually are in the
// same columns, or in the same rows if BM > BN: then each block loads half of the operand tile that
// they share and multicasts it to both, because L2 bandwidth limits the loop. The boxes of the
// shared operand have half a tile's rows, those of the other operand all.
template <class T, int BLOCK_M, int BLOCK_N, int STAGES>
struct MainloopWgmma {
  static constexpr int BM = BLOCK_M, BN = BLOCK_N, BK = 64, K_STEPS = BK / 16, CLUSTER = 2;
  static constexpr int PRODUCER_THREADS = 128, CONSUMER_WARPGROUPS = 2;
  static constexpr int THREADS = PRODUCER_THREADS + 128 * CONSUMER_WARPGROUPS;
  // A wgmma multiplies 64 rows; a warpgroup has this many blocks of 64 rows of a tile.
  static constexpr int ROW_BLOCKS = BM / (64 * CONSUMER_WARPGROUPS);
  static constexpr bool A_IS_SHARED = BM > BN;
  static constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, STAGE_BYTES = A_BYTES + B_BYTES;
  static constexpr int ROW_BLOCK_BYTES = 64 * BK * 2;
  static constexpr int HALF_ROWS = (A_IS_SHARED ? BM : BN) / 2, HALF_BYTES = HALF_ROWS * BK * 2;
  // The stages, then a full and an empty barrier for each.
  static constexpr int SHARED_BYTES = STAGES * (STAGE_BYTES + 2 * StageBarriers::BYTES);
  static_assert(HALF_BYTES % 1024 == 0 && B_BYTES % 1024 == 0, "the swizzle repeats after 1024 bytes");

  // A warpgroup's sums of each of its row blocks and all columns (fragment.cuh: wgmma_d).
  using Accumulators = float[ROW_BLOCKS][BN / 2];

  // First row and column of a tile, and its head.
  struct TileCoord {
    int m0, n0, head;
  };

  // Assigns tiles 0 .. count - 1 to the blocks of a persistent grid; the two blocks of a cluster
  // take neighbouring tiles. The last tile may be past `count`; its block then computes and
  // discards a copy so that both blocks of the cluster reach the same barriers.
  struct TileScheduler {
    int count, rank, tile, grid;

    __device__ __forceinline__ explicit TileScheduler(int count_)
        : count(count_),
          rank(ptx::cluster_rank()),
          tile(blockIdx.x),
          grid(gridDim.x) {}
    __device__ __forceinline__ bool has_tile() const { return tile - rank < count; }
    __device__ __forceinline__ void advance() { tile += grid; }
  };

  // Computes the scheduler's tiles, by all threads of the cluster. coord_of(tile) returns a
  // TileCoord. Each consumer thread has its own copy of `epilogue` and calls, for each tile,
  // epilogue.begin(tile) after the first products are issued, epilogue.prefetch() while later
  // products run, and epilogue.store(sums). `shared` starts at a multiple of 1024.
  template <class CoordOf, class Epilogue>
  static __device__ __forceinline__ void run(unsigned char* shared, const ptx::TensorMap& a,
                                             const ptx::TensorMap& b, int k,
                                             TileScheduler scheduler, const CoordOf& coord_of,
                                             Epilogue epilogue) {
    const u32 base = ptx::shared_address(shared);
    const StageBarriers full_barriers{base + STAGES * STAGE_BYTES};
    const StageBarriers empty_barriers{full_barriers[STAGES]};
    if (threadIdx.x < STAGES) {
      ptx::mbarrier_init(full_barriers[threadIdx.x], 1);
      ptx::mbarrier_init(empty_barriers[threadIdx.x], CONSUMER_WARPGROUPS * CLUSTER);
    }
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();  // also makes the barriers visible to TMA
    ptx::cluster_sync();
    const int k_blocks = (k + BK - 1) / BK;
    u32 stage = 0, phase = 0;
    auto next_stage = [&] {
      if (++stage == STAGES) stage = 0, phase ^= 1;
    };
    // Producer and consumer must be the two branches of a single `if` that lasts to the end of the
    // kernel; otherwise ptxas ignores the setmaxnreg budget.
    if (threadIdx.x < PRODUCER_THREADS) {
      ptx::registers_release<24>();
      const ptx::TensorMap &shared_map = A_IS_SHARED ? a : b, &own_map = A_IS_SHARED ? b : a;
      const u32 shared_offset = A_IS_SHARED ? 0 : A_BYTES, own_offset = A_IS_SHARED ? A_BYTES : 0;
      for (; threadIdx.x == 0 && scheduler.has_tile(); scheduler.advance()) {
        const int last = scheduler.count - 1, first = scheduler.tile - scheduler.rank;
        const int peer_tile = first + 1 - scheduler.rank;
        const TileCoord own = coord_of(scheduler.tile < last ? scheduler.tile : last);
        const TileCoord peer = coord_of(peer_tile < last ? peer_tile : last);
        const int shared_row = A_IS_SHARED ? own.m0 : own.n0, own_row = A_IS_SHARED ? own.n0 : own.m0;
        const bool is_shared =
            shared_row == (A_IS_SHARED ? peer.m0 : peer.n0) && own.head == peer.head;
        for (int k_block = 0; k_block < k_blocks; ++k_block, next_stage()) {
          const u32 full_barrier = full_barriers[stage], target = base + stage * STAGE_BYTES;
          ptx::mbarrier_wait(empty_barriers[stage], phase ^ 1);
          ptx::mbarrier_arrive_expect_tx(full_barrier, STAGE_BYTES);
          ptx::tma_load(target + own_offset, own_map, k_block * BK, own_row, own.head, full_barrier);
          for (int half = 0; half < 2; ++half) {
            const u32 half_target = target + shared_offset + half * HALF_BYTES;
            const int row = shared_row + half * HALF_ROWS;
            if (!is_shared)
              ptx::tma_load(half_target, shared_map, k_block * BK, row, own.head, full_barrier);
            else if (half == scheduler.rank)
              ptx::tma_load_multicast<2>(half_target, shared_map, k_block * BK, row, own.head,
                                      full_barrier);
          }
        }
      }
    } else {
      ptx::registers_claim<240>();
      // A shuffle shows the compiler that the warpgroup is uniform; otherwise each wgmma waits for
      // its own descriptor.
      const int warpgroup = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0) - 1;
      for (; scheduler.has_tile(); scheduler.advance()) {
        Accumulators sums;
        u32 previous_stage = 0;
        auto mma_stage = [&](int k_block, int k_steps) {
          ptx::mbarrier_wait(full_barriers[stage], phase);
          ptx::wgmma_fence();
          multiply(sums, warpgroup, base + stage * STAGE_BYTES, k_block > 0, k_steps);
          ptx::wgmma_commit();
          if (k_block == 0) {
            epilogue.begin(scheduler.tile);
          } else {
            ptx::wgmma_wait<1>();
            release(empty_barriers[previous_stage]);
          }
          if (k_block == 1 || k_blocks == 1) epilogue.prefetch();
          previous_stage = stage;
          next_stage();
        };
        for (int k_block = 0; k_block < k / BK; ++k_block) mma_stage(k_block, K_STEPS);
        if (k % BK > 0) mma_stage(k / BK, (k % BK + 15) / 16);
        ptx::wgmma_wait<0>();
        release(empty_barriers[previous_stage]);
        epilogue.store(sums);
      }
    }
    // A block must not exit while its peer can still write to its shared memory.
    __syncwarp();
    ptx::cluster_sync();
  }

 private:
  // Signals the producers of both blocks, which write to the stage: this warpgroup has read it.
  static __device__ __forceinline__ void release(u32 empty_barrier) {
    if (threadIdx.x % 128 < CLUSTER) ptx::mbarrier_arrive_cluster(empty_barrier, threadIdx.x % 128);
  }

  // Issues the products of the first `k_steps` steps of 16 elements of k of a stage.
  static __device__ __forceinline__ void multiply(Accumulators& sums, int warpgroup, u32 stage,
                                                  bool accumulate, int k_steps) {
    const auto a = ptx::wgmma_descriptor(stage + warpgroup * ROW_BLOCKS * ROW_BLOCK_BYTES);
    const auto b = ptx::wgmma_descriptor(stage + A_BYTES);
#pragma unroll
    for (int i = 0; i < K_STEPS; ++i)
#pragma unroll
      for (int block = 0; block < ROW_BLOCKS; ++block) {
        const auto rows = a + block * (ROW_BLOCK_BYTES / 16);  // a descriptor counts 16 bytes
        if (i < k_steps)
          ptx::wgmma_k16(sums[block], rows + 2 * i, b + 2 * i, accumulate || i > 0, T{});
      }
  }
};

}  // namespace gemm_core
