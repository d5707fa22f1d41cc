// The software pipeline of the tensor-core main loops: a ring of cp.async stages, and fragments of
// the next k step loaded while the tensor cores work on this one.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/tile_io.cuh"

namespace gemm_core {

// acc += the product of all tiles that `copies` brings, by all threads of the block. Warp has
// Fragments, STEPS (k steps a tile, even), load(fragments, stage, step) from the byte `stage` of
// shared memory, and multiply(acc, fragments). k may be no multiple of BK.
template <int STAGES, int STAGE_BYTES, int BK, class Warp, class Copies>
__device__ __forceinline__ void multistage(typename Warp::Accumulators& acc, const Warp& warp,
                                           Copies copies, unsigned char* shared, int k) {
  constexpr int STEPS = Warp::STEPS;
  static_assert(STEPS % 2 == 0 && STAGES >= 2, "fragments alternate across tiles");
  const u32 base = ptx::shared_address(shared);
  int k_left = k;  // from the tile to copy on
  u32 next = 0;    // its stage
  auto copied = [&] {
    ptx::cp_async_commit();  // also an empty group, so that the count of groups stays the same
    k_left -= BK;
    next = next == (STAGES - 1) * STAGE_BYTES ? 0 : next + STAGE_BYTES;
    copies.advance();
  };
  for (int s = 0; s < STAGES - 1; ++s) {
    if (k_left > 0) copies.copy(shared, next, k_left);
    copied();
  }
  typename Warp::Fragments fragments[2];
  ptx::cp_async_wait<STAGES - 2>();
  __syncthreads();
  warp.load(fragments[0], 0, 0);
  u32 stage = 0;
  int left = (k + BK - 1) / BK;
  // Multiplies the tile of `stage`, and between its k steps calls copy(step).
  auto multiply_tile = [&](auto copy) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      if (step + 1 < STEPS) {
        warp.load(fragments[(step + 1) % 2], stage, step + 1);
        copy(step);
        if (step + 2 == STEPS) copied();
      } else {
        stage = stage == (STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
        ptx::cp_async_wait<STAGES - 2>();
        __syncthreads();  // the next tile is here, and everyone has read this one
        if (--left > 0) warp.load(fragments[0], stage, 0);
      }
      warp.multiply(acc, fragments[step % 2]);
    }
  };
  while (copies.whole(k_left))
    multiply_tile([&](int step) { copies.template copy_whole<STEPS - 1>(base + next, step); });
  while (left > 0)
    multiply_tile([&](int step) {
      if (step == 0 && k_left > 0) copies.copy(shared, next, k_left);
    });
  ptx::cp_async_wait<0>();
  __syncthreads();  // the caller may use the shared memory
}

}  // namespace gemm_core
