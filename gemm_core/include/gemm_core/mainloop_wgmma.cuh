// Main loop on wgmma for numbers of 16 bits: one thread has TMA fill a ring of stages, two warpgroups
// multiply what it brings, tile after tile without a pause. Any m and n, k > 0; sm_90a.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/mbarrier.cuh"
#include "gemm_core/ptx/setmaxnreg.cuh"
#include "gemm_core/ptx/tma.cuh"
#include "gemm_core/ptx/wgmma_half.cuh"

namespace gemm_core {

// 128 x 256 tiles of A B; both operands as rows of k, each a tensor map of boxes of 64 elements by
// 128 (A) or 256 (B) rows under the 128-byte swizzle.
template <class T, int STAGES>
struct MainloopWgmma {
  static constexpr int BM = 128, BN = 256, BK = 64;
  static constexpr int PRODUCERS = 128, THREADS = PRODUCERS + 256;
  static constexpr int A_BYTES = BM * BK * 2, STAGE_BYTES = A_BYTES + BN * BK * 2;
  static constexpr int BYTES = STAGES * (STAGE_BYTES + 16);  // the stages, then two barriers each

  // Sums of 64 rows and all columns, by a warpgroup (fragment.cuh: wgmma_d).
  using Accumulators = float[128];
  static __device__ __forceinline__ int half() { return threadIdx.x / 128 - 1; }

  struct Corner {
    int m0, n0, head;
  };

  // Tiles blockIdx.x, + blocks, .. of `count`, by all threads of the block. corner(tile) says where
  // one lies. Those that have sums call, of a Consumer of their own, announce(tile) while the tile
  // before is under way, begin() before its products, and consume(sums). `shared` starts at a multiple
  // of 1024.
  template <class CornerOf, class Consumer>
  static __device__ __forceinline__ void run(unsigned char* shared, const ptx::TensorMap& a,
                                             const ptx::TensorMap& b, int k, int count, int blocks,
                                             const CornerOf& corner, Consumer consumer) {
    const u32 base = ptx::shared_address(shared);
    const u32 full = base + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    if (threadIdx.x < STAGES) {
      ptx::mbarrier_init(full + 8 * threadIdx.x, 1);
      ptx::mbarrier_init(empty + 8 * threadIdx.x, 2);
    }
    ptx::fence_stores_for_wgmma();  // TMA too sees the barriers
    __syncthreads();
    const int steps = (k + BK - 1) / BK;
    u32 stage = 0, parity = 0;
    auto next = [&] {
      if (++stage == STAGES) stage = 0, parity ^= 1;
    };
    // One if with both roles whole, to the end: else the compiler does not use what is claimed.
    if (threadIdx.x < PRODUCERS) {
      ptx::registers_release<24>();
      if (threadIdx.x > 0) return;
      for (int tile = blockIdx.x; tile < count; tile += blocks) {
        const Corner at = corner(tile);
        for (int step = 0; step < steps; ++step, next()) {
          ptx::mbarrier_wait(empty + 8 * stage, parity ^ 1);
          ptx::mbarrier_arrive_expecting(full + 8 * stage, STAGE_BYTES);
          const u32 to = base + stage * STAGE_BYTES;
          ptx::tma_load(to, a, step * BK, at.m0, at.head, full + 8 * stage);
          ptx::tma_load(to + A_BYTES, b, step * BK, at.n0, at.head, full + 8 * stage);
        }
      }
    } else {
      ptx::registers_claim<240>();
      if (blockIdx.x < count) consumer.announce(blockIdx.x);
      for (int tile = blockIdx.x; tile < count; tile += blocks) {
        consumer.begin();
        Accumulators sums;
        u32 before = 0;
        for (int step = 0; step < steps; ++step, next()) {
          ptx::mbarrier_wait(full + 8 * stage, parity);
          ptx::wgmma_fence();
          multiply(sums, base + stage * STAGE_BYTES, step > 0);
          ptx::wgmma_commit();
          if (step > 0) {
            ptx::wgmma_wait<1>();
            release(empty + 8 * before);
          }
          before = stage;
        }
        ptx::wgmma_wait<0>();
        if (steps > 0) release(empty + 8 * before);
        if (tile + blocks < count) consumer.announce(tile + blocks);
        consumer.consume(sums);
      }
    }
  }

 private:
  static __device__ __forceinline__ void release(u32 barrier) {
    if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(barrier);
  }

  static __device__ __forceinline__ void multiply(Accumulators& sums, u32 stage, bool accumulate) {
    const u32 a = stage + half() * 64 * BK * 2, b = stage + A_BYTES;
#pragma unroll
    for (int step = 0; step < BK / 16; ++step)
      ptx::wgmma_m64n256k16(sums, ptx::wgmma_descriptor(a + 32 * step),
                            ptx::wgmma_descriptor(b + 32 * step), accumulate || step > 0, T{});
  }
};

}  // namespace gemm_core
