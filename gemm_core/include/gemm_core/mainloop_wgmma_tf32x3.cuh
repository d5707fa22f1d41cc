// Main loop on wgmma with floats as 3xTF32: two producer and two consumer warpgroups. Any m, n, k
// and alignment; sm_90a.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/mbarrier.cuh"
#include "gemm_core/ptx/setmaxnreg.cuh"
#include "gemm_core/ptx/wgmma.cuh"
#include "gemm_core/stage_barriers.cuh"
#include "gemm_core/swizzle.cuh"
#include "gemm_core/tf32.cuh"
#include "gemm_core/tile_io.cuh"

namespace gemm_core {

// Copies the 128 x 32 tile of B from global memory through the registers of a warpgroup to swizzled
// shared memory, in which k runs along the rows. ROWS_ARE_K: the stored rows are consecutive k, and
// a thread transposes blocks of 4 x 4. ALIGNED: every stored row starts at a multiple of 16 bytes.
template <bool ROWS_ARE_K, bool ALIGNED>
struct SplitTile {
  static constexpr int VECTORS = 8;  // of four neighbours, per thread
  static constexpr int ROWS = ROWS_ARE_K ? 32 : 128, COLS = ROWS_ARE_K ? 128 : 32;
  float x[VECTORS][4];

  // Loads a tile from global memory; zeros beyond rows_left rows and cols_left columns.
  __device__ __forceinline__ void load(const float* source, i64 pitch, int rows_left,
                                       int cols_left) {
    const int row = first_row(), column = first_column();
    const float* from = source + row * pitch + column;
    if (ALIGNED && rows_left >= ROWS && cols_left >= COLS) {
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) {
        const float4 vector = *reinterpret_cast<const float4*>(from + row_step(i) * pitch);
        x[i][0] = vector.x, x[i][1] = vector.y, x[i][2] = vector.z, x[i][3] = vector.w;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool exists = row + row_step(i) < rows_left && column + e < cols_left;
        x[i][e] = exists ? from[row_step(i) * pitch + e] : 0.f;
      }
  }

  // Stores the large parts to the tile at `large` and the small parts to the tile at `small`.
  __device__ __forceinline__ void store(unsigned char* large, unsigned char* small) const {
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      u32 high[4], low[4];
#pragma unroll
      for (int e = 0; e < 4; ++e)
        split_tf32(ROWS_ARE_K ? x[i / 4 * 4 + e][i % 4] : x[i][e], high[e], low[e]);
      // Rows 16 apart have the same swizzle: one register holds the offsets of all eight vectors.
      const int offset =
          ROWS_ARE_K ? Swizzle<8>::offset(first_column() + i % 4, first_row() / 4 + i / 4 * 4)
                     : Swizzle<8>::offset(first_row(), first_column() / 4) + row_step(i) * COLS * 4;
      *reinterpret_cast<uint4*>(large + offset) = make_uint4(high[0], high[1], high[2], high[3]);
      *reinterpret_cast<uint4*>(small + offset) = make_uint4(low[0], low[1], low[2], low[3]);
    }
  }

 private:
  // The stored row and column of this thread's first vector, and the rows from there to vector i.
  // Eight threads that load together read 128 bytes of a row; eight that store together write
  // different banks.
  static __device__ __forceinline__ int first_row() {
    return ROWS_ARE_K ? threadIdx.x / 2 % 4 * 4 : threadIdx.x % 128 / 8;
  }
  static __device__ __forceinline__ int first_column() {
    return ROWS_ARE_K ? threadIdx.x % 128 / 8 * 8 + threadIdx.x % 2 * 4 : threadIdx.x % 8 * 4;
  }
  static __device__ __forceinline__ constexpr int row_step(int i) {
    return ROWS_ARE_K ? i / 4 * 16 + i % 4 : 16 * i;
  }
};

// Computes one 128 x 128 tile of A B by 3xTF32: large and small parts of both operands, three of
// the four products. A is (m, k) row-major; B is (n, k) rows if B_ROWS_ARE_N, else (k, n)
// row-major. Consumers split A on its way from shared memory to the registers that wgmma reads.
// Producers split B, which wgmma reads from shared memory only. Sums of TILES_PER_PROMOTION tiles
// are added in ordinary float arithmetic, because tensor cores truncate their sums.
template <int STAGES, bool B_ROWS_ARE_N, bool ALIGNED_A, bool ALIGNED_B>
struct MainloopWgmmaTf32x3 {
  static constexpr int BM = 128, BN = 128, BK = 32, TILES_PER_PROMOTION = 2;
  static constexpr int PRODUCER_THREADS = 256, CONSUMER_WARPGROUPS = 2;
  static constexpr int THREADS = PRODUCER_THREADS + 128 * CONSUMER_WARPGROUPS;
  // A stage is the tile of A, then the large and the small parts of the tile of B.
  static constexpr int TILE_BYTES = BM * BK * 4, STAGE_BYTES = 3 * TILE_BYTES;
  // The stages, then a full and an empty barrier for each.
  static constexpr int SHARED_BYTES = STAGES * (STAGE_BYTES + 2 * StageBarriers::BYTES);

  // A warpgroup's sums of 64 rows and all columns (fragment.cuh: wgmma_d).
  using Accumulators = float[64];
  static __device__ __forceinline__ int first_row() {
    return (threadIdx.x - PRODUCER_THREADS) / 128 * 64;
  }

  // Computes A[m0 : m0 + BM] B[:, n0 : n0 + BN], by all threads of the block; each consumer thread
  // ends with store(sums), each producer thread with help(). `shared` starts at a multiple of 1024.
  template <class Store, class Help>
  static __device__ __forceinline__ void run(unsigned char* shared, const float* a, i64 pitch_a,
                                             const float* b, i64 pitch_b, int m0, int n0, int m,
                                             int n, int k, Store store, Help help) {
    const u32 base = ptx::shared_address(shared);
    const StageBarriers full_barriers{base + STAGES * STAGE_BYTES};
    const StageBarriers empty_barriers{full_barriers[STAGES]};
    if (threadIdx.x < STAGES) {
      ptx::mbarrier_init(full_barriers[threadIdx.x], 2 * 128);
      ptx::mbarrier_init(empty_barriers[threadIdx.x], CONSUMER_WARPGROUPS);
    }
    __syncthreads();
    // Rounded up to a multiple of TILES_PER_PROMOTION; elements beyond k are zeros.
    constexpr int promotion_k = TILES_PER_PROMOTION * BK;
    const int tiles = (k + promotion_k - 1) / promotion_k * TILES_PER_PROMOTION;
    // Producer and consumer must be the two branches of a single `if` that lasts to the end of the
    // kernel; otherwise ptxas ignores the setmaxnreg budget.
    if (threadIdx.x < PRODUCER_THREADS) {
      ptx::registers_release<88>();
      produce(shared, full_barriers, empty_barriers, a + m0 * pitch_a, pitch_a,
              b + (B_ROWS_ARE_N ? n0 * pitch_b : n0), pitch_b, m - m0, n - n0, k, tiles);
      help();
    } else {
      ptx::registers_claim<168>();
      Accumulators sums = {};
      consume(sums, shared, full_barriers, empty_barriers, tiles);
      store(sums);
    }
  }

 private:
  // full_barriers[stage] completes when the stage has been written, B by stores and A by cp.async;
  // empty_barriers[stage] when it has been read. The two warpgroups alternate tile by tile: the
  // proxy fence also waits for a thread's loads in flight, which then have the time of two tiles.
  static __device__ __forceinline__ void produce(unsigned char* shared, StageBarriers full_barriers,
                                                 StageBarriers empty_barriers, const float* a,
                                                 i64 pitch_a, const float* b, i64 pitch_b,
                                                 int m_left, int n_left, int k, int tiles) {
    using CopyA = TileCopy<float, Swizzle<8>, BM, BK, 128, false, ALIGNED_A>;
    CopyA copy_a(a, pitch_a, m_left, threadIdx.x % 128);
    SplitTile<!B_ROWS_ARE_N, ALIGNED_B> tile_b;
    auto load = [&](int k0) {
      tile_b.load(b + (B_ROWS_ARE_N ? k0 : k0 * pitch_b), pitch_b, B_ROWS_ARE_N ? n_left : k - k0,
                   B_ROWS_ARE_N ? k - k0 : n_left);
    };
    const int first = threadIdx.x / 128;
    if (first > 0) copy_a.advance();
    load(first * BK);
    for (int tile = first; tile < tiles; tile += 2) {
      const u32 stage = tile % STAGES, phase = (tile / STAGES + 1) % 2;
      const u32 target = stage * STAGE_BYTES;
      ptx::mbarrier_wait(empty_barriers[stage], phase);
      tile_b.store(shared + target + TILE_BYTES, shared + target + 2 * TILE_BYTES);
      ptx::fence_proxy_async();
      if (copy_a.is_full(k - tile * BK)) {
        copy_a.template copy_full<1>(ptx::shared_address(shared) + target, 0);
      } else {
        copy_a.copy_guarded(shared, target, k - tile * BK);
      }
      ptx::mbarrier_arrive_after_cp_async(full_barriers[stage]);
      ptx::mbarrier_arrive(full_barriers[stage]);
      copy_a.advance(), copy_a.advance();
      if (tile + 2 < tiles) load((tile + 2) * BK);
    }
  }

  static __device__ __forceinline__ void consume(Accumulators& sums, const unsigned char* shared,
                                                 StageBarriers full_barriers,
                                                 StageBarriers empty_barriers, int tiles) {
    const u32 base = ptx::shared_address(shared);
    const fragment::Position first_element = fragment::mma_tf32_a(threadIdx.x % 32, 0);
    const int row = first_row() + threadIdx.x % 128 / 32 * 16 + first_element.row;
    Accumulators partial;  // sums of the tensor cores since the last promotion
    u32 stage = 0, phase = 0, previous_stage = 0;
    for (int first = 0; first < tiles; first += TILES_PER_PROMOTION) {
#pragma unroll
      for (int tile = 0; tile < TILES_PER_PROMOTION; ++tile) {
        ptx::mbarrier_wait(full_barriers[stage], phase);
        const unsigned char* a = shared + stage * STAGE_BYTES + first_element.column * 4;
        const u32 b = base + stage * STAGE_BYTES + TILE_BYTES;
        // Two sets of A fragments: one is loaded and split while products read the other.
        u32 large[2][4], small[2][4];
#pragma unroll
        for (int k_step = 0; k_step < BK / 8; ++k_step) {
          // At most the products of the previous k step are still in flight.
          ptx::wgmma_wait<1>();
          if (k_step == 1 && tile > 0) release(empty_barriers[previous_stage]);
          load_a(a, row, k_step, large[k_step % 2], small[k_step % 2]);
          ptx::wgmma_fence();
          multiply(partial, large[k_step % 2], small[k_step % 2], b + 32 * k_step, tile + k_step > 0);
          ptx::wgmma_commit();
        }
        previous_stage = stage;
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }
      ptx::wgmma_wait<0>();
      release(empty_barriers[previous_stage]);
#pragma unroll
      for (int i = 0; i < 64; ++i) sums[i] += partial[i];
    }
  }

  static __device__ __forceinline__ void release(u32 empty_barrier) {
    if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(empty_barrier);
  }

  // Loads this thread's elements of A of a k step (fragment.cuh: mma_tf32_a) and splits them.
  static __device__ __forceinline__ void load_a(const unsigned char* a, int row, int k_step,
                                                u32 (&large)[4], u32 (&small)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int offset = Swizzle<8>::offset(row + i % 2 * 8, 2 * k_step + i / 2);
      split_tf32(*reinterpret_cast<const float*>(a + offset), large[i], small[i]);
    }
  }

  static __device__ __forceinline__ void multiply(Accumulators& partial, const u32 (&large)[4],
                                                  const u32 (&small)[4], u32 b, bool accumulate) {
    const unsigned long long b_large = ptx::wgmma_descriptor(b);
    const unsigned long long b_small = ptx::wgmma_descriptor(b + TILE_BYTES);
    ptx::wgmma_m64n128k8_tf32(partial, small, b_large, accumulate);
    ptx::wgmma_m64n128k8_tf32(partial, large, b_small, true);
    ptx::wgmma_m64n128k8_tf32(partial, large, b_large, true);
  }
};

}  // namespace gemm_core
