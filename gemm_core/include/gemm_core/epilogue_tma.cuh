// Stores a warpgroup's sums of wgmma to C by way of shared memory and TMA, which writes while the
// warpgroup goes on.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/named_barrier.cuh"
#include "gemm_core/ptx/stmatrix.cuh"
#include "gemm_core/ptx/tma.cuh"
#include "gemm_core/ptx/wgmma.cuh"

namespace gemm_core {

// 64 * ROW_BLOCKS rows of COLUMNS 16-bit elements T: boxes of 64 x 64, in rows of 128 bytes under the
// 128-byte swizzle. `shared` is the address of BYTES bytes of this warpgroup's own, a multiple of 1024;
// `barrier` is a named barrier of its own.
template <class T, int ROW_BLOCKS, int COLUMNS>
struct EpilogueTma {
  static constexpr int BOX = 64, ROW_BYTES = 128, BOX_BYTES = BOX * ROW_BYTES, PANELS = COLUMNS / BOX;
  static constexpr int BYTES = ROW_BLOCKS * PANELS * BOX_BYTES;
  const ptx::TensorMap& c;  // with boxes of 64 x 64
  u32 shared;
  int barrier;

  // Stores rows m0 .. and columns n0 .. of C, without those outside of C. The sums may change at once.
  __device__ __forceinline__ void store(const float (&sums)[ROW_BLOCKS][COLUMNS / 2], int m0,
                                        int n0) const {
    const bool is_first = threadIdx.x % 128 == 0;
    if (is_first) ptx::tma_store_wait_read<0>();  // of the tile before
    ptx::named_barrier_sync(barrier, 128);
    write_shared(sums);
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(barrier, 128);
    if (!is_first) return;
    for (int box = 0; box < ROW_BLOCKS * PANELS; ++box)
      ptx::tma_store(c, n0 + box % PANELS * BOX, m0 + box / PANELS * BOX, 0,
                     shared + box * BOX_BYTES);
    ptx::tma_store_commit();
  }

  // Waits until this thread's shared memory has been read; must come before the block's end.
  static __device__ __forceinline__ void finish() { ptx::tma_store_wait_read<0>(); }

 private:
  // Lane l passes the address of row l % 16 of its warp's 16 rows, and of column 0 or 8 of 16 columns.
  __device__ __forceinline__ void write_shared(const float (&sums)[ROW_BLOCKS][COLUMNS / 2]) const {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    const u32 start = shared + row * ROW_BYTES;
#pragma unroll
    for (int block = 0; block < ROW_BLOCKS; ++block)
#pragma unroll
      for (int column = 0; column < COLUMNS; column += 16) {
        const int box = block * PANELS + column / BOX, chunk = column % BOX / 8 + lane / 16;
        u32 pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          pairs[i] = Numeric<T>::pair(sums[block][column / 2 + 2 * i],
                                      sums[block][column / 2 + 2 * i + 1]);
        ptx::stmatrix_x4(start + box * BOX_BYTES + ((chunk ^ row % 8) << 4), pairs);
      }
  }
};

}  // namespace gemm_core
