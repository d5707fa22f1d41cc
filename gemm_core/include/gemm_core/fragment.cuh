// The position in the matrix of each element of a fragment, by lane and element index: the twin of
// fragments.py, with its names and sources.
#pragma once

namespace gemm_core::fragment {

struct Position {
  int row, column;
};

// C and D of mma.sync m16n8: four floats per lane.
__device__ __forceinline__ Position mma_c(int lane, int i) {
  return {lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2};
}

// A of mma.sync m16n8k16: eight halves per lane.
__device__ __forceinline__ Position mma_a(int lane, int i) {
  return {lane / 4 + 8 * (i / 2 % 2), lane % 4 * 2 + i % 2 + 8 * (i / 4)};
}

// B of mma.sync m16n8k16: four halves per lane.
__device__ __forceinline__ Position mma_b(int lane, int i) {
  return {lane % 4 * 2 + i % 2 + 8 * (i / 2), lane / 4};
}

// A and B of mma.sync m16n8k8 with TF32 operands.
__device__ __forceinline__ Position mma_tf32_a(int lane, int i) {
  return {lane / 4 + 8 * (i % 2), lane % 4 + 4 * (i / 2)};
}
__device__ __forceinline__ Position mma_tf32_b(int lane, int i) {
  return {lane % 4 + 4 * i, lane / 4};
}

// D of wgmma m64nN: N / 2 floats per thread of the warpgroup.
__device__ __forceinline__ Position wgmma_d(int thread, int i) {
  const int lane = thread % 32;
  return {thread / 32 * 16 + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + lane % 4 * 2 + i % 2};
}

// Accumulators of wmma MxNx16: eight elements per lane. CUDA does not specify this layout:
// wmma_layout.py checks the device before the first kernel that relies on it.
template <int M, int N>
__device__ __forceinline__ Position wmma_accumulator(int lane, int i) {
  if constexpr (M == 16) return mma_a(lane, i);
  if constexpr (M == 32) return mma_c(lane, i);
  const Position transposed = mma_c(lane, i);
  return {transposed.column, transposed.row};
}

// Row of the 16x16 block of halves whose address a lane passes to ldmatrix.x4, and its first
// column: for A, or for B stored as k rows and read with .trans.
__device__ __forceinline__ Position ldmatrix_a(int lane) { return {lane % 16, 8 * (lane / 16)}; }
// For B stored as n rows: two blocks of eight n.
__device__ __forceinline__ Position ldmatrix_b(int lane) {
  return {lane % 8 + 8 * (lane / 16), 8 * (lane / 8 % 2)};
}

}  // namespace gemm_core::fragment
