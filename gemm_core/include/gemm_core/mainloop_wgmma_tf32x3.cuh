// Main loop on wgmma with floats as 3xTF32: two warpgroups fetch and split tiles, two multiply. Any m,
// n, k and alignment; sm_90a.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/mbarrier.cuh"
#include "gemm_core/ptx/setmaxnreg.cuh"
#include "gemm_core/ptx/wgmma.cuh"
#include "gemm_core/swizzle.cuh"

namespace gemm_core {

// x = large + small, large with the bits of TF32: rounded to nearest, as what the tensor core does to
// a float is to cut it off. Never overflows: where x is near the largest float, infinite or no number,
// small is what is left of it, and carries it into the product.
__device__ __forceinline__ void split_tf32(float x, float& large, float& small) {
  const u32 bits = __float_as_uint(x), magnitude = (bits & 0x7fffffff) + 0x1000;
  const u32 most = 0x7f7fffff;
  large = __uint_as_float(((magnitude < most ? magnitude : most) & 0x7fffe000) |
                          (bits & 0x80000000));
  small = x - large;
}

// 128 x 32 floats of one operand between global memory, the registers of a warpgroup and swizzled
// shared memory, in which k always runs along the rows. K_DOWN: it runs down the stored rows.
// ALIGNED: every stored row starts at a multiple of 16 bytes.
template <bool K_DOWN, bool ALIGNED>
struct SplitTile {
  static constexpr int COUNT = 8;  // groups of four neighbours
  static constexpr int ROWS = K_DOWN ? 32 : 128, COLS = K_DOWN ? 128 : 32;
  float x[COUNT][4];

  // Stored row and first column of group i. Threads that store together write different banks.
  static __device__ __forceinline__ int row_of(int i) {
    return K_DOWN ? threadIdx.x % 32 : threadIdx.x % 128 / 8 + 16 * i;
  }
  static __device__ __forceinline__ int column_of(int i) {
    return K_DOWN ? threadIdx.x % 128 / 32 * 32 + 4 * i : threadIdx.x % 8 * 4;
  }

  // Zeros where fewer rows or columns are left.
  __device__ __forceinline__ void fetch(const float* source, i64 pitch, int rows_left,
                                        int cols_left) {
    const float* from = source + row_of(0) * pitch + column_of(0);
    const i64 apart = K_DOWN ? 4 : 16 * pitch;  // from group to group
    if (ALIGNED && rows_left >= ROWS && cols_left >= COLS) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i, from += apart) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        x[i][0] = four.x, x[i][1] = four.y, x[i][2] = four.z, x[i][3] = four.w;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i, from += apart)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        x[i][e] = row_of(i) < rows_left && column_of(i) + e < cols_left ? from[e] : 0.f;
  }

  // The large parts to the tile at `large`, the small ones to the tile at `small`.
  __device__ __forceinline__ void place(unsigned char* large, unsigned char* small) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      float high[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float low;
        split_tf32(x[i][e], high[e], low);
        x[i][e] = low;
      }
      store(large, i, high);
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) store(small, i, x[i]);
  }

 private:
  static __device__ __forceinline__ void store(unsigned char* tile, int i, const float (&four)[4]) {
    const int row = row_of(i), column = column_of(i);
    if constexpr (K_DOWN) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = Swizzle<8>::at(column + e, row / 4) + row % 4 * 4;
        *reinterpret_cast<float*>(tile + at) = four[e];
      }
    } else {
      *reinterpret_cast<float4*>(tile + Swizzle<8>::at(row, column / 4)) =
          make_float4(four[0], four[1], four[2], four[3]);
    }
  }
};

// One 128 x 128 tile of A B by 3xTF32: large and small parts of both operands, three of the four
// products. A is (m, k) row-major; B is (n, k) rows if B_ROWS_ARE_N, else (k, n) row-major. Sums of
// PROMOTE tiles are added up in ordinary float arithmetic, because those of the tensor core are cut
// off, not rounded.
template <int STAGES, bool B_ROWS_ARE_N, bool ALIGNED_A, bool ALIGNED_B>
struct MainloopWgmmaTf32x3 {
  static constexpr int BM = 128, BN = 128, BK = 32, PROMOTE = 2;
  static constexpr int PRODUCERS = 256, THREADS = PRODUCERS + 256;
  // A stage is the large and the small parts of A, then those of B.
  static constexpr int TILE = BM * BK * 4, STAGE_BYTES = 4 * TILE;

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
      ptx::mbarrier_init(full + 8 * threadIdx.x, 128);
      ptx::mbarrier_init(empty + 8 * threadIdx.x, 2);
    }
    __syncthreads();
    // One if with both roles whole, to the end: else the compiler does not use what is claimed.
    if (threadIdx.x < PRODUCERS) {
      ptx::registers_release<112>();
      produce(shared, full, empty, a + m0 * pitch_a, pitch_a,
              b + (B_ROWS_ARE_N ? n0 * pitch_b : n0), pitch_b, m - m0, n - n0, k);
    } else {
      ptx::registers_claim<144>();
      Accumulators sums = {};
      consume(sums, base, full, empty, (k + BK - 1) / BK);
      store(sums);
    }
  }

 private:
  // Barrier s of `full` completes when stage s has been written, of `empty` when it has been read. The
  // two warpgroups take turns, tile by tile: the fence waits for a thread's loads too, which so have
  // the time of two tiles.
  static __device__ __forceinline__ void produce(unsigned char* shared, u32 full, u32 empty,
                                                 const float* a, i64 pitch_a, const float* b,
                                                 i64 pitch_b, int m_left, int n_left, int k) {
    SplitTile<false, ALIGNED_A> tile_a;
    SplitTile<!B_ROWS_ARE_N, ALIGNED_B> tile_b;
    auto fetch = [&](int k0) {
      if (k0 >= k) return;
      tile_a.fetch(a + k0, pitch_a, m_left, k - k0);
      tile_b.fetch(b + (B_ROWS_ARE_N ? k0 : k0 * pitch_b), pitch_b, B_ROWS_ARE_N ? n_left : k - k0,
                   B_ROWS_ARE_N ? k - k0 : n_left);
    };
    const int first = threadIdx.x / 128;
    fetch(first * BK);
    for (int tile = first; tile * BK < k; tile += 2) {
      const u32 stage = tile % STAGES, parity = (tile / STAGES + 1) % 2;
      unsigned char* to = shared + stage * STAGE_BYTES;
      ptx::mbarrier_wait(empty + 8 * stage, parity);
      tile_a.place(to, to + TILE);
      tile_b.place(to + 2 * TILE, to + 3 * TILE);
      ptx::fence_stores_for_wgmma();
      ptx::mbarrier_arrive(full + 8 * stage);
      fetch((tile + 2) * BK);
    }
  }

  static __device__ __forceinline__ void consume(Accumulators& sums, u32 base, u32 full, u32 empty,
                                                 int tiles) {
    Accumulators part;                      // what the tensor cores sum up in
    u32 stage = 0, parity = 0, before = 0;  // before: the stage of the tile before this one
    int in_part = 0;                        // tiles that `part` holds
    for (int tile = 0; tile < tiles; ++tile) {
      ptx::mbarrier_wait(full + 8 * stage, parity);
      ptx::wgmma_fence();
      multiply(part, base + stage * STAGE_BYTES, in_part > 0);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (in_part > 0) release(empty + 8 * before);
      before = stage;
      if (++stage == STAGES) stage = 0, parity ^= 1;
      if (++in_part == PROMOTE || tile + 1 == tiles) {
        ptx::wgmma_wait<0>();
        release(empty + 8 * before);
#pragma unroll
        for (int i = 0; i < 64; ++i) sums[i] += part[i];
        in_part = 0;
      }
    }
  }

  static __device__ __forceinline__ void release(u32 barrier) {
    if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(barrier);
  }

  static __device__ __forceinline__ void multiply(Accumulators& part, u32 stage, bool accumulate) {
    const u32 a = stage + first_row() * BK * 4, b = stage + 2 * TILE;
#pragma unroll
    for (int step = 0; step < BK / 8; ++step) {
      const unsigned long long a_large = ptx::wgmma_descriptor(a + 32 * step);
      const unsigned long long a_small = ptx::wgmma_descriptor(a + TILE + 32 * step);
      const unsigned long long b_large = ptx::wgmma_descriptor(b + 32 * step);
      const unsigned long long b_small = ptx::wgmma_descriptor(b + TILE + 32 * step);
      ptx::wgmma_m64n128k8_tf32(part, a_small, b_large, accumulate || step > 0);
      ptx::wgmma_m64n128k8_tf32(part, a_large, b_small, true);
      ptx::wgmma_m64n128k8_tf32(part, a_large, b_large, true);
    }
  }
};

}  // namespace gemm_core
