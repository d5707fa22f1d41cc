// One stage of the ring of a wgmma kernel: a tile of each operand, which TMA writes and wgmma reads.
#pragma once

#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/tma.cuh"
#include "gemm_core/ptx/wgmma_half.cuh"
#include "gemm_core/ptx/wgmma_tf32.cuh"

namespace gemm_core {

// A tile of BM x BK elements of A, then one of B, both in rows of 128 bytes under the 128-byte
// swizzle. The rows of A are rows of k. So are the BN rows of B if B_ROWS_ARE_N; else the tile of B is
// panels of BK rows of 64 n, which only 16-bit elements can have. The CLUSTER blocks of a cluster
// compute tiles in the same columns: each loads its share of the tile of B into all of them.
template <class T, int BLOCK_M, int BLOCK_N, int CLUSTER, bool B_ROWS_ARE_N>
struct WgmmaStage {
  static constexpr int BM = BLOCK_M, BN = BLOCK_N, ROW_BYTES = 128, BK = ROW_BYTES / sizeof(T);
  static constexpr int A_BYTES = BM * ROW_BYTES, BYTES = A_BYTES + BN * ROW_BYTES;
  static constexpr int PANEL_BYTES = BK * ROW_BYTES;
  // The boxes of a panel: as few as give each block of the cluster as many.
  static constexpr int PANEL_PARTS =
      BN / 64 % CLUSTER == 0 ? 1 : CLUSTER % 2 == 0 && BN / 64 * 2 % CLUSTER == 0 ? 2 : CLUSTER;
  static_assert(B_ROWS_ARE_N || sizeof(T) == 2, "wgmma transposes 16-bit elements only");

  // Starts the loads of the stage at shared address `stage`: the part of both operands at k0 for the
  // tile at (m0, n0). Called by one thread of each block of the cluster. `barrier` of each block
  // counts BYTES bytes.
  static __device__ __forceinline__ void load(u32 stage, const ptx::TensorMap& a,
                                              const ptx::TensorMap& b, int m0, int n0, int k0,
                                              int rank, u32 barrier) {
    ptx::tma_load(stage, a, k0, m0, 0, barrier);
    const u32 tile_b = stage + A_BYTES;
    if constexpr (B_ROWS_ARE_N) {
      constexpr int rows = BN / CLUSTER;  // of a box
      load_b(tile_b + rank * rows * ROW_BYTES, b, k0, n0 + rank * rows, barrier);
    } else {
      constexpr int panels = BN / 64, rows = BK / PANEL_PARTS;  // of a box
      for (int i = rank; i < panels * PANEL_PARTS; i += CLUSTER) {
        const int panel = i / PANEL_PARTS, row = i % PANEL_PARTS * rows;
        load_b(tile_b + panel * PANEL_BYTES + row * ROW_BYTES, b, n0 + 64 * panel, k0 + row, barrier);
      }
    }
  }

  // Issues the products of the stage for rows first_row .. first_row + 64 * ROW_BLOCKS - 1 of the tile
  // of A. With `accumulate` they are added to the sums. Called by a warpgroup.
  template <int ROW_BLOCKS>
  static __device__ __forceinline__ void multiply(float (&sums)[ROW_BLOCKS][BN / 2], u32 stage,
                                                  int first_row, bool accumulate) {
    // Addresses in descriptors count 16 bytes; a step of k is 32 bytes of a row, or 16 rows.
    constexpr int steps = 4, row_block = 64 * ROW_BYTES / 16;
    constexpr int step_a = 32 / 16, step_b = B_ROWS_ARE_N ? 32 / 16 : 16 * ROW_BYTES / 16;
    const auto a = ptx::wgmma_descriptor(stage + first_row * ROW_BYTES);
    const auto b = B_ROWS_ARE_N ? ptx::wgmma_descriptor(stage + A_BYTES)
                                : ptx::wgmma_descriptor_rows_of_k(stage + A_BYTES, PANEL_BYTES);
#pragma unroll
    for (int i = 0; i < steps; ++i)
#pragma unroll
      for (int block = 0; block < ROW_BLOCKS; ++block) {
        const auto rows = a + block * row_block + i * step_a;
        if constexpr (sizeof(T) == 2)
          ptx::wgmma_k16<!B_ROWS_ARE_N>(sums[block], rows, b + i * step_b, accumulate || i > 0, T{});
        else
          ptx::wgmma_k8(sums[block], rows, b + i * step_b, accumulate || i > 0);
      }
  }

 private:
  static __device__ __forceinline__ void load_b(u32 target, const ptx::TensorMap& b, int x, int y,
                                                u32 barrier) {
    if constexpr (CLUSTER == 1)
      ptx::tma_load(target, b, x, y, 0, barrier);
    else
      ptx::tma_load_multicast<CLUSTER>(target, b, x, y, 0, barrier);
  }
};

}  // namespace gemm_core
