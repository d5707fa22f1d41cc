// The software pipeline of the tensor-core main loops: a ring of cp.async stages, and fragments of
// the next k step loaded while the tensor cores multiply this one.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/tile_io.cuh"

namespace gemm_core {

// Adds the product of all tiles that `stage_copy` copies to `sums`, by all threads of the block.
// Warp has Fragments, K_STEPS (k steps per tile, even), load(fragments, stage, k_step), where
// `stage` is the byte in shared memory at which a stage starts, and multiply(sums, fragments). Any
// k.
template <int STAGES, int STAGE_BYTES, int BK, class Warp, class StageCopy>
__device__ __forceinline__ void multistage(typename Warp::Accumulators& sums, const Warp& warp,
                                           StageCopy stage_copy, unsigned char* shared, int k) {
  constexpr int K_STEPS = Warp::K_STEPS;
  static_assert(K_STEPS % 2 == 0 && STAGES >= 2, "fragments alternate across tiles");
  const u32 base = ptx::shared_address(shared);
  int k_left = k;       // from the next tile to copy to the end
  u32 write_stage = 0;  // where that tile goes
  auto next_stage = [](u32 stage) {
    return stage == (STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
  };
  auto commit_stage = [&] {
    ptx::cp_async_commit();  // an empty group too, so that the number of groups stays the same
    k_left -= BK;
    write_stage = next_stage(write_stage);
    stage_copy.advance();
  };
  for (int s = 0; s < STAGES - 1; ++s) {
    if (k_left > 0) stage_copy.copy(shared, write_stage, k_left);
    commit_stage();
  }
  typename Warp::Fragments fragments[2];
  ptx::cp_async_wait<STAGES - 2>();
  __syncthreads();
  warp.load(fragments[0], 0, 0);
  u32 read_stage = 0;
  int tiles_left = (k + BK - 1) / BK;
  // Multiplies the tile of read_stage and calls copy(k_step) between its k steps.
  auto multiply_tile = [&](auto copy) {
#pragma unroll
    for (int k_step = 0; k_step < K_STEPS; ++k_step) {
      if (k_step + 1 < K_STEPS) {
        warp.load(fragments[(k_step + 1) % 2], read_stage, k_step + 1);
        copy(k_step);
        if (k_step + 2 == K_STEPS) commit_stage();
      } else {
        read_stage = next_stage(read_stage);
        ptx::cp_async_wait<STAGES - 2>();
        __syncthreads();  // the next tile has arrived, and every warp has read this one
        if (--tiles_left > 0) warp.load(fragments[0], read_stage, 0);
      }
      warp.multiply(sums, fragments[k_step % 2]);
    }
  };
  while (stage_copy.is_full(k_left))
    multiply_tile([&](int k_step) {
      u32 target = base + write_stage;
      asm volatile("" : "+r"(target));  // one register for both operands, not one each
      stage_copy.template copy_full<K_STEPS - 1>(target, k_step);
    });
  while (tiles_left > 0)
    multiply_tile([&](int k_step) {
      if (k_step == 0 && k_left > 0) stage_copy.copy(shared, write_stage, k_left);
    });
  ptx::cp_async_wait<0>();
  __syncthreads();  // the caller may reuse the shared memory
}

}  // namespace gemm_core
