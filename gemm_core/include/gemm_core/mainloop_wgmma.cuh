// Main loop on wgmma for numbers of 16 bits: one thread has TMA fill a ring of stages, two warpgroups
// multiply what it brings, tile after tile without a pause. Any m and n, k > 0; sm_90a.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/cluster.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/mbarrier.cuh"
#include "gemm_core/ptx/setmaxnreg.cuh"
#include "gemm_core/ptx/tma.cuh"
#include "gemm_core/ptx/wgmma_half.cuh"

namespace gemm_core {

// BM x BN tiles of A B by clusters of two blocks; both operands as rows of k, each a tensor map of boxes
// of 64 elements under the 128-byte swizzle. Where the two tiles of a cluster lie in the same columns,
// or in the same rows if a tile has more of these, each block brings half of what they share for both:
// L2 is what limits the loop. The boxes of that operand have half a tile's rows, the other's all.
template <class T, int BLOCK_M, int BLOCK_N, int STAGES>
struct MainloopWgmma {
  static constexpr int BM = BLOCK_M, BN = BLOCK_N, BK = 64, SLICES = BK / 16, CLUSTER = 2;
  static constexpr int PRODUCERS = 128, THREADS = PRODUCERS + 256;
  static constexpr int BLOCKS = BM / 128;  // of 64 rows, a warpgroup
  static constexpr bool SHARES_A = BM > BN;
  static constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, STAGE_BYTES = A_BYTES + B_BYTES;
  static constexpr int BLOCK_BYTES = 64 * BK * 2;
  static constexpr int HALF = (SHARES_A ? BM : BN) / 2, HALF_BYTES = HALF * BK * 2;
  static constexpr int BYTES = STAGES * (STAGE_BYTES + 16);  // the stages, then two barriers each
  static_assert(HALF_BYTES % 1024 == 0 && B_BYTES % 1024 == 0, "the swizzle repeats after 1024 bytes");

  // Sums of blocks of 64 rows and all columns, by a warpgroup (fragment.cuh: wgmma_d).
  using Accumulators = float[BLOCKS][BN / 2];

  struct Corner {
    int m0, n0, head;
  };

  // Which of the tiles 0 .. count - 1 this block computes: one, its neighbour in the cluster the next.
  // The last may be beyond `count`; nothing comes of it then, but it keeps the cluster in step.
  struct Work {
    int count, rank, tile, step;

    __device__ __forceinline__ explicit Work(int count_)
        : count(count_),
          rank(ptx::cluster_rank()),
          tile(blockIdx.x),
          step(gridDim.x) {}
    __device__ __forceinline__ bool any() const { return tile - rank < count; }
    __device__ __forceinline__ void advance() { tile += step; }
  };

  // The tiles of `work`, by all threads of the cluster. corner(tile) says where one lies. Those that
  // have sums call, of a Consumer of their own, begin(tile) and, some time later, look_ahead() while its
  // products are under way, then consume(sums). `shared` starts at a multiple of 1024.
  template <class CornerOf, class Consumer>
  static __device__ __forceinline__ void run(unsigned char* shared, const ptx::TensorMap& a,
                                             const ptx::TensorMap& b, int k, Work work,
                                             const CornerOf& corner, Consumer consumer) {
    const u32 base = ptx::shared_address(shared);
    const u32 full = base + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    if (threadIdx.x < STAGES) {
      ptx::mbarrier_init(full + 8 * threadIdx.x, 1);
      ptx::mbarrier_init(empty + 8 * threadIdx.x, 2 * CLUSTER);
    }
    ptx::fence_mbarrier_init();
    ptx::fence_stores_for_wgmma();  // TMA too sees the barriers
    ptx::cluster_sync();
    const int steps = (k + BK - 1) / BK;
    u32 stage = 0, parity = 0;
    auto next = [&] {
      if (++stage == STAGES) stage = 0, parity ^= 1;
    };
    // One if with both roles whole, to the end: else the compiler does not use what is claimed.
    if (threadIdx.x < PRODUCERS) {
      ptx::registers_release<24>();
      const ptx::TensorMap &common = SHARES_A ? a : b, &own = SHARES_A ? b : a;
      const u32 common_at = SHARES_A ? 0 : A_BYTES, own_at = SHARES_A ? A_BYTES : 0;
      for (; threadIdx.x == 0 && work.any(); work.advance()) {
        const int last = work.count - 1, first = work.tile - work.rank;
        const Corner at = corner(work.tile < last ? work.tile : last);
        const Corner mate = corner(first + 1 - work.rank < last ? first + 1 - work.rank : last);
        const int common0 = SHARES_A ? at.m0 : at.n0, own0 = SHARES_A ? at.n0 : at.m0;
        const bool shares = common0 == (SHARES_A ? mate.m0 : mate.n0) && at.head == mate.head;
        for (int step = 0; step < steps; ++step, next()) {
          const u32 barrier = full + 8 * stage, to = base + stage * STAGE_BYTES;
          ptx::mbarrier_wait(empty + 8 * stage, parity ^ 1);
          ptx::mbarrier_arrive_expecting(barrier, STAGE_BYTES);
          ptx::tma_load(to + own_at, own, step * BK, own0, at.head, barrier);
          for (int half = 0; half < 2; ++half) {
            const u32 to_half = to + common_at + half * HALF_BYTES;
            const int row = common0 + half * HALF;
            if (!shares)
              ptx::tma_load(to_half, common, step * BK, row, at.head, barrier);
            else if (half == work.rank)
              ptx::tma_load_shared(to_half, common, step * BK, row, at.head, barrier);
          }
        }
      }
    } else {
      ptx::registers_claim<240>();
      // Uniform in the compiler's eyes: else every product waits for its descriptor in turn.
      const int warpgroup = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0) - 1;
      for (; work.any(); work.advance()) {
        Accumulators sums;
        u32 before = 0;
        auto take = [&](int step, int slices) {
          ptx::mbarrier_wait(full + 8 * stage, parity);
          ptx::wgmma_fence();
          multiply(sums, warpgroup, base + stage * STAGE_BYTES, step > 0, slices);
          ptx::wgmma_commit();
          if (step == 0) {
            consumer.begin(work.tile);
          } else {
            ptx::wgmma_wait<1>();
            release(empty + 8 * before);
          }
          if (step == 1 || steps == 1) consumer.look_ahead();
          before = stage;
          next();
        };
        for (int step = 0; step < k / BK; ++step) take(step, SLICES);
        if (k % BK > 0) take(k / BK, (k % BK + 15) / 16);
        ptx::wgmma_wait<0>();
        release(empty + 8 * before);
        consumer.consume(sums);
      }
    }
    // No block ends while the other may still write to its shared memory.
    __syncwarp();
    ptx::cluster_sync();
  }

 private:
  // A warpgroup has read a stage, in the sight of both blocks, which write to it.
  static __device__ __forceinline__ void release(u32 barrier) {
    if (threadIdx.x % 128 < CLUSTER) ptx::mbarrier_arrive_at(barrier, threadIdx.x % 128);
  }

  // By the first slices of 16 elements of k of a stage.
  static __device__ __forceinline__ void multiply(Accumulators& sums, int warpgroup, u32 stage,
                                                  bool accumulate, int slices) {
    const auto a = ptx::wgmma_descriptor(stage + warpgroup * BLOCKS * BLOCK_BYTES);
    const auto b = ptx::wgmma_descriptor(stage + A_BYTES);
#pragma unroll
    for (int i = 0; i < SLICES; ++i)
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block) {
        const auto rows = a + block * (BLOCK_BYTES / 16);  // a descriptor counts 16 bytes
        if (i < slices)
          ptx::wgmma_k16(sums[block], rows + 2 * i, b + 2 * i, accumulate || i > 0, T{});
      }
  }
};

}  // namespace gemm_core
