// As mainloop_wgmma.cuh, with three warps beside the producer's that only store: they take what the
// consumer warpgroups hand on, while these multiply the next tile. Any m and n, k > 0; sm_90a.
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
template <class T, int BLOCK_M, int BLOCK_N, int STAGES, int LEAD>
struct MainloopWgmmaAsync {
  static constexpr int BM = BLOCK_M, BN = BLOCK_N, BK = 64, K_STEPS = BK / 16, CLUSTER = 2;
  // The first warpgroup of a block produces and stores, the others multiply. A fourth warpgroup
  // would leave 128 registers a thread, too few for ptxas to compile a wgmma of 128 accumulators.
  static constexpr int CONSUMER_WARPGROUPS = 2, THREADS = 128 * (1 + CONSUMER_WARPGROUPS);
  static constexpr int STORER_WARPS = 3;
  // A wgmma multiplies 64 rows; a warpgroup has this many blocks of 64 rows of a tile.
  static constexpr int ROW_BLOCKS = BM / (64 * CONSUMER_WARPGROUPS);
  static constexpr bool A_IS_SHARED = BM > BN;
  static constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, STAGE_BYTES = A_BYTES + B_BYTES;
  static constexpr int ROW_BLOCK_BYTES = 64 * BK * 2;
  static constexpr int HALF_ROWS = (A_IS_SHARED ? BM : BN) / 2, HALF_BYTES = HALF_ROWS * BK * 2;
  // The stages, a full and an empty barrier for each, the barrier of the lead.
  static constexpr int SHARED_BYTES =
      STAGES * (STAGE_BYTES + 2 * StageBarriers::BYTES) + 16;  // what follows starts at 16 bytes
  static_assert(LEAD < STAGES, "the first warpgroup gets its lead without the second");
  static_assert(HALF_BYTES % 1024 == 0 && B_BYTES % 1024 == 0, "the swizzle repeats after 1024 bytes");

  // The number of registers of a thread of the first warpgroup, and of a consumer.
  static constexpr int PRODUCER_REGISTERS = 120, CONSUMER_REGISTERS = 192;
  static_assert(PRODUCER_REGISTERS + CONSUMER_WARPGROUPS * CONSUMER_REGISTERS <= 3 * 168, "");

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
    __device__ __forceinline__ void advance(int tiles = 1) { tile = after(tiles); }
    // The tile so many after this one, which may be past `count`.
    __device__ __forceinline__ int after(int tiles) const { return tile + tiles * grid; }
    // The tile of the other block of the cluster.
    __device__ __forceinline__ int peer_tile() const { return tile + 1 - 2 * rank; }
    // The tile to compute in place of one that may be past `count`.
    __device__ __forceinline__ int clamped(int any_tile) const {
      return any_tile < count ? any_tile : count - 1;
    }
  };

  // Computes the scheduler's tiles, by all threads of the cluster. coord_of(tile) returns a
  // TileCoord. Each consumer thread has its own copy of `hand_on` and calls hand_on(warpgroup, sums)
  // for each tile; the STORER_WARPS warps call store(warp, scheduler) once. `shared` starts at a
  // multiple of 1024. The caller's own barriers are initialised before.
  template <class CoordOf, class HandOn, class Store>
  static __device__ __forceinline__ void run(unsigned char* shared, const ptx::TensorMap& a,
                                             const ptx::TensorMap& b, int k,
                                             TileScheduler scheduler, const CoordOf& coord_of,
                                             HandOn hand_on, const Store& store) {
    const u32 base = ptx::shared_address(shared);
    const StageBarriers full_barriers{base + STAGES * STAGE_BYTES};
    const StageBarriers empty_barriers{full_barriers[STAGES]};
    if (threadIdx.x < STAGES) {
      ptx::mbarrier_init(full_barriers[threadIdx.x], 1);
      ptx::mbarrier_init(empty_barriers[threadIdx.x], CONSUMER_WARPGROUPS * CLUSTER);
    }
    const u32 lead_barrier = empty_barriers[STAGES];
    if (threadIdx.x == 0) ptx::mbarrier_init(lead_barrier, 1);
    const bool produces = threadIdx.x == 32 * STORER_WARPS;
    if (produces) ptx::prefetch_map(a), ptx::prefetch_map(b);
    // Where the first tile is comes while the blocks of the cluster wait for each other.
    const TileCoord first = coord_of(scheduler.clamped(scheduler.tile));
    const TileCoord first_of_peer = coord_of(scheduler.clamped(scheduler.peer_tile()));
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
    if (threadIdx.x < 128) {
      ptx::registers_release<PRODUCER_REGISTERS>();
      const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
      if (warp < STORER_WARPS)
        store(warp, scheduler);
      else if (produces)
        produce(base, a, b, k_blocks, scheduler, coord_of, first, first_of_peer);
    } else {
      ptx::registers_claim<CONSUMER_REGISTERS>();
      // A shuffle shows the compiler that the warpgroup is uniform; otherwise each wgmma waits for
      // its own descriptor.
      const int warpgroup = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0) - 1;
      // If k were shorter, the first warpgroup might give way twice before the second waits.
      const bool has_lead = LEAD > 0 && k_blocks >= STAGES;
      for (u32 tile_phase = 0; scheduler.has_tile(); scheduler.advance(), tile_phase ^= 1) {
        Accumulators sums;
        u32 previous_stage = 0;
        if (has_lead && warpgroup == 1) ptx::mbarrier_wait(lead_barrier, tile_phase);
        auto mma_stage = [&](int k_block, int k_steps) {
          ptx::mbarrier_wait(full_barriers[stage], phase);
          ptx::wgmma_fence();
          multiply(sums, warpgroup, base + stage * STAGE_BYTES, k_block > 0, k_steps);
          ptx::wgmma_commit();
          if (k_block > 0) {
            ptx::wgmma_wait<1>();
            release(empty_barriers[previous_stage]);
            if (has_lead && k_block == LEAD && threadIdx.x == 128) ptx::mbarrier_arrive(lead_barrier);
          }
          previous_stage = stage;
          next_stage();
        };
        for (int k_block = 0; k_block < k / BK; ++k_block) mma_stage(k_block, K_STEPS);
        if (k % BK > 0) mma_stage(k / BK, (k % BK + 15) / 16);
        ptx::wgmma_wait<0>();
        release(empty_barriers[previous_stage]);
        hand_on(warpgroup, sums);
      }
    }
    // A block must not exit while its peer can still write to its shared memory.
    __syncwarp();
    ptx::cluster_sync();
  }

 private:
  // Fills the stages for all of the scheduler's tiles, by one thread. next_own, next_peer: the
  // coordinates of the first tile and of the peer's.
  template <class CoordOf>
  static __device__ __forceinline__ void produce(u32 base, const ptx::TensorMap& a,
                                                 const ptx::TensorMap& b, int k_blocks,
                                                 TileScheduler scheduler,
                                                 const CoordOf& coord_of, TileCoord next_own,
                                                 TileCoord next_peer) {
    const StageBarriers full_barriers{base + STAGES * STAGE_BYTES};
    const StageBarriers empty_barriers{full_barriers[STAGES]};
    u32 stage = 0, phase = 0;
    auto next_stage = [&] {
      if (++stage == STAGES) stage = 0, phase ^= 1;
    };
    const ptx::TensorMap &shared_map = A_IS_SHARED ? a : b, &own_map = A_IS_SHARED ? b : a;
    const u32 shared_offset = A_IS_SHARED ? 0 : A_BYTES, own_offset = A_IS_SHARED ? A_BYTES : 0;
    const auto own_coord = [&] { return coord_of(scheduler.clamped(scheduler.tile)); };
    const auto peer_coord = [&] { return coord_of(scheduler.clamped(scheduler.peer_tile())); };
    // The coordinates of the next tile are loaded before the stages of this one are.
    while (scheduler.has_tile()) {
      const TileCoord own = next_own, peer = next_peer;
      scheduler.advance();
      next_own = own_coord(), next_peer = peer_coord();
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
  }

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
