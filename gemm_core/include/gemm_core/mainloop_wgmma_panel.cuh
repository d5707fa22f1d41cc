// Main loop on wgmma for 16-bit operands of short rows: a block keeps the rows of B of its tiles in
// shared memory, and its two consumer warpgroups multiply and hand on in turns. 0 < k <= K_BLOCKS * 64;
// any m and n; sm_90a.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/mbarrier.cuh"
#include "gemm_core/ptx/setmaxnreg.cuh"
#include "gemm_core/ptx/tma.cuh"
#include "gemm_core/ptx/wgmma_half.cuh"
#include "gemm_core/stage_barriers.cuh"

namespace gemm_core {

// Tiles of 128 x BLOCK_N of A B, of each of which a warpgroup has 64 rows. Both operands are rows of k,
// each a tensor map of boxes of 64 elements under the 128-byte swizzle; the boxes of A have 64 rows,
// those of B BLOCK_N. While one warpgroup multiplies, the other hands its sums on, so that the tensor
// cores are not without products. Only the rows of A are loaded for every tile: TMA then writes a third
// of what it writes for both operands to shared memory, whose bandwidth the products share.
template <class T, int BLOCK_N, int K_BLOCKS, int STAGES>
struct MainloopWgmmaPanel {
  static constexpr int BM = 128, BN = BLOCK_N, BK = 64, K_STEPS = BK / 16;
  // The first warpgroup of a block produces and stores, the others multiply.
  static constexpr int CONSUMER_WARPGROUPS = 2, THREADS = 128 * (1 + CONSUMER_WARPGROUPS);
  static constexpr int STORER_WARPS = 3;
  static constexpr int BOX_ROWS = 64;  // of A: the rows that a warpgroup multiplies
  static constexpr int A_BYTES = BOX_ROWS * BK * 2, B_BYTES = BN * BK * 2;  // of 64 elements of k
  // The panel of B and the stages of A, a full and an empty barrier for each part of either, and two
  // barriers for the turns of each warpgroup.
  static constexpr int PANEL_BYTES = K_BLOCKS * B_BYTES, RING_BYTES = STAGES * A_BYTES;
  static constexpr int SHARED_BYTES =
      PANEL_BYTES + RING_BYTES + 2 * (K_BLOCKS + STAGES + CONSUMER_WARPGROUPS) * StageBarriers::BYTES;
  static_assert(SHARED_BYTES % 16 == 0, "what follows starts at 16 bytes");
  static_assert(B_BYTES % 1024 == 0, "the swizzle repeats after 1024 bytes");

  // The number of registers of a thread of the first warpgroup, and of a consumer.
  static constexpr int PRODUCER_REGISTERS = 120, CONSUMER_REGISTERS = 192;
  static_assert(PRODUCER_REGISTERS + CONSUMER_WARPGROUPS * CONSUMER_REGISTERS <= 3 * 168, "");

  // A warpgroup's sums of its 64 rows and all columns (fragment.cuh: wgmma_d).
  using Sums = float[BN / 2];

  // First row and column of a tile, and its head.
  struct TileCoord {
    int m0, n0, head;

    __device__ __forceinline__ bool has_panel_of(const TileCoord& other) const {
      return n0 == other.n0 && head == other.head;
    }
  };

  // Gives each block of the grid about equally many of tiles 0 .. count - 1, one after the other.
  struct TileScheduler {
    int tile, end;

    __device__ __forceinline__ explicit TileScheduler(int count)
        : tile(first_of(count, blockIdx.x)), end(first_of(count, blockIdx.x + 1)) {}
    __device__ __forceinline__ bool has_tile() const { return tile < end; }
    __device__ __forceinline__ void advance(int tiles = 1) { tile = after(tiles); }
    // The tile so many after this one, which may be that of another block or past the last.
    __device__ __forceinline__ int after(int tiles) const { return tile + tiles; }

   private:
    static __device__ __forceinline__ int first_of(int count, unsigned block) {
      return static_cast<int>(static_cast<unsigned long long>(count) * block / gridDim.x);
    }
  };

  // Computes the scheduler's tiles, of which there is one at least, by all threads of the block.
  // coord_of(tile) returns a TileCoord, also past the last tile. Each consumer thread has its own copy
  // of `hand_on` and calls hand_on(warpgroup, sums) for each tile; each thread of the STORER_WARPS warps
  // calls store(scheduler) once. `shared` starts at a multiple of 1024. The caller's own barriers are
  // initialised before.
  template <class CoordOf, class HandOn, class Store>
  static __device__ __forceinline__ void run(unsigned char* shared, const ptx::TensorMap& a,
                                             const ptx::TensorMap& b, int k,
                                             const TileScheduler& scheduler,
                                             const CoordOf& coord_of, const HandOn& hand_on,
                                             const Store& store) {
    const Shared memory(ptx::shared_address(shared));
    const bool produces = threadIdx.x == 32 * STORER_WARPS;
    if (produces) {
      ptx::prefetch_map(a), ptx::prefetch_map(b);
      for (int i = 0; i < STAGES; ++i) ptx::mbarrier_init(memory.stage_full[i], 1);
      for (int i = 0; i < STAGES; ++i) ptx::mbarrier_init(memory.stage_empty[i], 1);
      for (int i = 0; i < K_BLOCKS; ++i) ptx::mbarrier_init(memory.panel_full[i], 1);
      for (int i = 0; i < K_BLOCKS; ++i)
        ptx::mbarrier_init(memory.panel_empty[i], CONSUMER_WARPGROUPS);
      for (int i = 0; i < CONSUMER_WARPGROUPS; ++i) {
        // All threads of the other warpgroup arrive, so that none of them still waits for its turn.
        ptx::mbarrier_init(memory.turns_to_multiply[i], 128);
        ptx::mbarrier_init(memory.turns_to_hand_on[i], 128);
      }
    }
    ptx::fence_proxy_async();  // makes the barriers visible to TMA
    __syncthreads();
    // Producer and consumer must be the two branches of a single `if` that lasts to the end of the
    // kernel; otherwise ptxas ignores the setmaxnreg budget.
    if (threadIdx.x < 128) {
      ptx::registers_release<PRODUCER_REGISTERS>();
      const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
      if (warp < STORER_WARPS)
        store(scheduler);
      else if (produces)
        produce(memory, a, b, k, scheduler, coord_of);
    } else {
      ptx::registers_claim<CONSUMER_REGISTERS>();
      // A shuffle shows the compiler that the warpgroup is uniform; otherwise each wgmma waits for
      // its own descriptor.
      const int warpgroup = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0) - 1;
      consume(memory, warpgroup, k, scheduler, coord_of, hand_on);
    }
  }

 private:
  using Ring = RingPosition<STAGES>;

  // Shared addresses.
  struct Shared {
    u32 panel, ring;
    StageBarriers stage_full, stage_empty, panel_full, panel_empty;
    StageBarriers turns_to_multiply, turns_to_hand_on;  // one for each warpgroup

    __device__ __forceinline__ explicit Shared(u32 base)
        : panel(base),
          ring(base + PANEL_BYTES),
          stage_full{ring + RING_BYTES},
          stage_empty{stage_full[STAGES]},
          panel_full{stage_empty[STAGES]},
          panel_empty{panel_full[K_BLOCKS]},
          turns_to_multiply{panel_empty[K_BLOCKS]},
          turns_to_hand_on{turns_to_multiply[CONSUMER_WARPGROUPS]} {}
  };

  // Fills the panel and the stages for all tiles, in the order in which they are multiplied; by one
  // thread.
  template <class CoordOf>
  static __device__ __forceinline__ void produce(const Shared& memory, const ptx::TensorMap& a,
                                                 const ptx::TensorMap& b, int k,
                                                 TileScheduler scheduler, const CoordOf& coord_of) {
    const int k_blocks = (k + BK - 1) / BK;
    Ring ring;
    u32 panel_phase = 1;
    bool has_panel = false;
    for (TileCoord tile = coord_of(scheduler.tile); scheduler.has_tile(); scheduler.advance()) {
      // Where the next tile is comes while this one is loaded.
      const TileCoord next = coord_of(scheduler.after(1));
      for (int part = 0; part < CONSUMER_WARPGROUPS; ++part)
        for (int k_block = 0; k_block < k_blocks; ++k_block, ring.advance()) {
          if (!has_panel) {
            ptx::mbarrier_wait(memory.panel_empty[k_block], panel_phase);
            ptx::mbarrier_arrive_expect_tx(memory.panel_full[k_block], B_BYTES);
            ptx::tma_load(memory.panel + k_block * B_BYTES, b, k_block * BK, tile.n0, tile.head,
                          memory.panel_full[k_block]);
          }
          has_panel = has_panel || k_block + 1 == k_blocks;
          const u32 full = memory.stage_full[ring.stage];
          ptx::mbarrier_wait(memory.stage_empty[ring.stage], ring.phase ^ 1);
          ptx::mbarrier_arrive_expect_tx(full, A_BYTES);
          ptx::tma_load(memory.ring + ring.stage * A_BYTES, a, k_block * BK, tile.m0 + part * BOX_ROWS,
                        tile.head, full);
        }
      if (!next.has_panel_of(tile)) has_panel = false, panel_phase ^= 1;
      tile = next;
    }
  }

  // Multiplies a warpgroup's rows of all tiles.
  template <class CoordOf, class HandOn>
  static __device__ __forceinline__ void consume(const Shared& memory, int warpgroup, int k,
                                                 TileScheduler scheduler, const CoordOf& coord_of,
                                                 HandOn hand_on) {
    const int k_blocks = (k + BK - 1) / BK;
    Ring ring;
    if (warpgroup == 1) ring.skip(k_blocks);
    // The first warpgroup's first turns need no sign of the other.
    u32 turn_phase = warpgroup ^ 1, panel_phase = 0;
    bool has_panel = false;
    for (TileCoord tile = coord_of(scheduler.tile); scheduler.has_tile(); scheduler.advance()) {
      const TileCoord next = coord_of(scheduler.after(1));
      const bool keeps_panel = next.has_panel_of(tile);
      Sums sums;
      u32 previous_stage = 0;
      const auto release = [&](int k_block) {
        if (threadIdx.x % 128 > 0) return;
        ptx::mbarrier_arrive(memory.stage_empty[previous_stage]);
        if (!keeps_panel) ptx::mbarrier_arrive(memory.panel_empty[k_block]);
      };
      const auto multiply_block = [&](int k_block, int k_steps) {
        ptx::mbarrier_wait(memory.stage_full[ring.stage], ring.phase);
        if (!has_panel) ptx::mbarrier_wait(memory.panel_full[k_block], panel_phase);
        ptx::wgmma_fence();
        multiply(sums, memory.ring + ring.stage * A_BYTES, memory.panel + k_block * B_BYTES,
                 k_block > 0, k_steps);
        ptx::wgmma_commit();
        if (k_block > 0) {
          ptx::wgmma_wait<1>();
          release(k_block - 1);
        }
        previous_stage = ring.stage;
        ring.advance();
      };
      ptx::mbarrier_wait(memory.turns_to_multiply[warpgroup], turn_phase);
      for (int k_block = 0; k_block < k / BK; ++k_block) multiply_block(k_block, K_STEPS);
      if (k % BK > 0) multiply_block(k / BK, (k % BK + 15) / 16);
      ptx::mbarrier_arrive(memory.turns_to_multiply[1 - warpgroup]);
      ptx::wgmma_wait<0>();
      release(k_blocks - 1);
      ring.skip(k_blocks);
      has_panel = keeps_panel;
      if (!keeps_panel) panel_phase ^= 1;
      tile = next;
      // What the warpgroups hand their sums to may be the same slots, which are filled in turns.
      ptx::mbarrier_wait(memory.turns_to_hand_on[warpgroup], turn_phase);
      hand_on(warpgroup, sums);
      ptx::mbarrier_arrive(memory.turns_to_hand_on[1 - warpgroup]);
      turn_phase ^= 1;
    }
  }

  // Issues the products of the first `k_steps` steps of 16 elements of k of a stage.
  static __device__ __forceinline__ void multiply(Sums& sums, u32 stage, u32 panel_block,
                                                  bool accumulate, int k_steps) {
    const auto a = ptx::wgmma_descriptor(stage), b = ptx::wgmma_descriptor(panel_block);
#pragma unroll
    for (int i = 0; i < K_STEPS; ++i)  // a descriptor counts 16 bytes
      if (i < k_steps) ptx::wgmma_k16(sums, a + 2 * i, b + 2 * i, accumulate || i > 0, T{});
  }
};

}  // namespace gemm_core
