// Main loop on wgmma with floats as 3xTF32: two warpgroups fetch tiles, two multiply. Any m,
// n, k and alignment; sm_90a.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/mbarrier.cuh"
#include "gemm_core/ptx/setmaxnreg.cuh"
#include "gemm_core/ptx/wgmma.cuh"
#include "gemm_core/swizzle.cuh"
#include "gemm_core/tf32.cuh"
#include "gemm_core/tile_io.cuh"

namespace gemm_core {

// The 128 x 32 tile of B between global memory, the registers of a warpgroup and swizzled shared
// memory, in which k runs along the rows. K_DOWN: it runs down the stored rows, and a thread turns
// blocks of 4 x 4. ALIGNED: every stored row starts at a multiple of 16 bytes.
template <bool K_DOWN, bool ALIGNED>
struct SplitTile {
  static constexpr int COUNT = 8;  // groups of four neighbours
  static constexpr int ROWS = K_DOWN ? 32 : 128, COLS = K_DOWN ? 128 : 32;
  float x[COUNT][4];

  // Zeros where fewer rows or columns are left.
  __device__ __forceinline__ void fetch(const float* source, i64 pitch, int rows_left,
                                        int cols_left) {
    const int row = first_row(), column = first_column();
    const float* from = source + row * pitch + column;
    if (ALIGNED && rows_left >= ROWS && cols_left >= COLS) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        const float4 four = *reinterpret_cast<const float4*>(from + row_step(i) * pitch);
        x[i][0] = four.x, x[i][1] = four.y, x[i][2] = four.z, x[i][3] = four.w;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool exists = row + row_step(i) < rows_left && column + e < cols_left;
        x[i][e] = exists ? from[row_step(i) * pitch + e] : 0.f;
      }
  }

  // The large parts to the tile at `large`, the small ones to the tile at `small`.
  __device__ __forceinline__ void place(unsigned char* large, unsigned char* small) const {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      u32 high[4], low[4];
#pragma unroll
      for (int e = 0; e < 4; ++e)
        split_tf32(K_DOWN ? x[i / 4 * 4 + e][i % 4] : x[i][e], high[e], low[e]);
      const int at = K_DOWN ? Swizzle<8>::at(first_column() + i % 4, first_row() / 4 + i / 4 * 4)
                            : Swizzle<8>::at(first_row() + row_step(i), first_column() / 4);
      *reinterpret_cast<uint4*>(large + at) = make_uint4(high[0], high[1], high[2], high[3]);
      *reinterpret_cast<uint4*>(small + at) = make_uint4(low[0], low[1], low[2], low[3]);
    }
  }

 private:
  // Stored row and column of this thread's first group, and rows from there to group i. Eight threads
  // that load together read 128 bytes of a row; eight that store together write different banks.
  static __device__ __forceinline__ int first_row() {
    return K_DOWN ? threadIdx.x / 2 % 4 * 4 : threadIdx.x % 128 / 8;
  }
  static __device__ __forceinline__ int first_column() {
    return K_DOWN ? threadIdx.x % 128 / 8 * 8 + threadIdx.x % 2 * 4 : threadIdx.x % 8 * 4;
  }
  static __device__ __forceinline__ constexpr int row_step(int i) {
    return K_DOWN ? i / 4 * 16 + i % 4 : 16 * i;
  }
};

// One 128 x 128 tile of A B by 3xTF32: large and small parts of both operands, three of the four
// products. A is (m, k) row-major; B is (n, k) rows if B_ROWS_ARE_N, else (k, n) row-major. A is
// split by the warps that multiply, on its way from shared memory to the registers that wgmma reads;
// B, which wgmma reads from shared memory only, by those that fetch. Sums of PROMOTE tiles are added
// up in ordinary float arithmetic, because those of the tensor core are cut off, not rounded.
template <int STAGES, bool B_ROWS_ARE_N, bool ALIGNED_A, bool ALIGNED_B>
struct MainloopWgmmaTf32x3 {
  static constexpr int BM = 128, BN = 128, BK = 32, PROMOTE = 2;
  static constexpr int PRODUCERS = 256, THREADS = PRODUCERS + 256;
  // A stage is the tile of A, then the large and the small parts of B.
  static constexpr int TILE = BM * BK * 4, STAGE_BYTES = 3 * TILE;

  // Sums of 64 rows and all columns, by a warpgroup (fragment.cuh: wgmma_d).
  using Accumulators = float[64];
  static __device__ __forceinline__ int first_row() { return (threadIdx.x - PRODUCERS) / 128 * 64; }

  // A[m0 : m0 + BM] B[:, n0 : n0 + BN], by all threads of the block; those that have a part of it end
  // with store(sums). `shared` starts at a multiple of 1024 and holds the stages, then 16 bytes each.
  template <class Store>
  static __device__ __forceinline__ void run(unsigned char* shared, const float* a, i64 pitch_a,
                                             const float* b, i64 pitch_b, int m0, int n0, int m,
                                             int n, int k, Store store) {
    const u32 base = ptx::shared_address(shared);
    const u32 full = base + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    if (threadIdx.x < STAGES) {
      ptx::mbarrier_init(full + 8 * threadIdx.x, 2 * 128);
      ptx::mbarrier_init(empty + 8 * threadIdx.x, 2);
    }
    __syncthreads();
    // Whole turns of PROMOTE; what lies beyond k is zeros.
    const int tiles = (k + PROMOTE * BK - 1) / (PROMOTE * BK) * PROMOTE;
    // One if with both roles whole, to the end: else the compiler does not use what is claimed.
    if (threadIdx.x < PRODUCERS) {
      ptx::registers_release<88>();
      produce(shared, full, empty, a + m0 * pitch_a, pitch_a,
              b + (B_ROWS_ARE_N ? n0 * pitch_b : n0), pitch_b, m - m0, n - n0, k, tiles);
    } else {
      ptx::registers_claim<168>();
      Accumulators sums = {};
      consume(sums, shared, full, empty, tiles);
      store(sums);
    }
  }

 private:
  // Barrier s of `full` completes when stage s has been written, B by stores and A by copies, of
  // `empty` when it has been read. The two warpgroups take turns, tile by tile: the fence waits for
  // what a thread loads too, which so has the time of two tiles.
  static __device__ __forceinline__ void produce(unsigned char* shared, u32 full, u32 empty,
                                                 const float* a, i64 pitch_a, const float* b,
                                                 i64 pitch_b, int m_left, int n_left, int k,
                                                 int tiles) {
    using CopyA = TileCopy<float, Swizzle<8>, BM, BK, 128, false, ALIGNED_A>;
    CopyA copy_a(a, pitch_a, m_left, threadIdx.x % 128);
    SplitTile<!B_ROWS_ARE_N, ALIGNED_B> tile_b;
    auto fetch = [&](int k0) {
      tile_b.fetch(b + (B_ROWS_ARE_N ? k0 : k0 * pitch_b), pitch_b, B_ROWS_ARE_N ? n_left : k - k0,
                   B_ROWS_ARE_N ? k - k0 : n_left);
    };
    const int first = threadIdx.x / 128;
    if (first > 0) copy_a.advance();
    fetch(first * BK);
    for (int tile = first; tile < tiles; tile += 2) {
      const u32 stage = tile % STAGES, parity = (tile / STAGES + 1) % 2;
      const u32 to = stage * STAGE_BYTES;
      ptx::mbarrier_wait(empty + 8 * stage, parity);
      tile_b.place(shared + to + TILE, shared + to + 2 * TILE);
      ptx::fence_stores_for_wgmma();
      if (copy_a.whole(k - tile * BK)) {
        copy_a.template copy_whole<1>(ptx::shared_address(shared) + to, 0);
      } else {
        copy_a.copy_ragged(shared, to, k - tile * BK);
      }
      ptx::mbarrier_arrive_after_copies(full + 8 * stage);
      ptx::mbarrier_arrive(full + 8 * stage);
      copy_a.advance(), copy_a.advance();
      if (tile + 2 < tiles) fetch((tile + 2) * BK);
    }
  }

  static __device__ __forceinline__ void consume(Accumulators& sums, const unsigned char* shared,
                                                 u32 full, u32 empty, int tiles) {
    const u32 base = ptx::shared_address(shared);
    const fragment::Position corner = fragment::mma_tf32_a(threadIdx.x % 32, 0);
    const int row = first_row() + threadIdx.x % 128 / 32 * 16 + corner.row;
    Accumulators part;                      // what the tensor cores sum up in
    u32 stage = 0, parity = 0, before = 0;  // before: the stage of the tile before this one
    for (int first = 0; first < tiles; first += PROMOTE) {
#pragma unroll
      for (int tile = 0; tile < PROMOTE; ++tile) {
        ptx::mbarrier_wait(full + 8 * stage, parity);
        const unsigned char* a = shared + stage * STAGE_BYTES + corner.column * 4;
        const u32 b = base + stage * STAGE_BYTES + TILE;
        // Two sets, so that one is loaded and split while products read the other.
        u32 large[2][4], small[2][4];
#pragma unroll
        for (int step = 0; step < BK / 8; ++step) {
          // At most the step before this one is under way.
          ptx::wgmma_wait<1>();
          if (step == 1 && tile > 0) release(empty + 8 * before);
          load_a(a, row, step, large[step % 2], small[step % 2]);
          ptx::wgmma_fence();
          multiply(part, large[step % 2], small[step % 2], b + 32 * step, tile + step > 0);
          ptx::wgmma_commit();
        }
        before = stage;
        if (++stage == STAGES) stage = 0, parity ^= 1;
      }
      ptx::wgmma_wait<0>();
      release(empty + 8 * before);
#pragma unroll
      for (int i = 0; i < 64; ++i) sums[i] += part[i];
    }
  }

  static __device__ __forceinline__ void release(u32 barrier) {
    if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(barrier);
  }

  // This thread's elements of k step `step` (fragment.cuh: mma_tf32_a), in both parts.
  static __device__ __forceinline__ void load_a(const unsigned char* a, int row, int step,
                                                u32 (&large)[4], u32 (&small)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = Swizzle<8>::at(row + i % 2 * 8, 2 * step + i / 2);
      split_tf32(*reinterpret_cast<const float*>(a + at), large[i], small[i]);
    }
  }

  static __device__ __forceinline__ void multiply(Accumulators& part, const u32 (&large)[4],
                                                  const u32 (&small)[4], u32 b, bool accumulate) {
    const unsigned long long b_large = ptx::wgmma_descriptor(b);
    const unsigned long long b_small = ptx::wgmma_descriptor(b + TILE);
    ptx::wgmma_m64n128k8_tf32(part, small, b_large, accumulate);
    ptx::wgmma_m64n128k8_tf32(part, large, b_small, true);
    ptx::wgmma_m64n128k8_tf32(part, large, b_large, true);
  }
};

}  // namespace gemm_core
