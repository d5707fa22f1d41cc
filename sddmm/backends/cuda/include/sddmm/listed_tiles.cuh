// What the kernels read whose tiles are stored by lists of their nonzeros.
#pragma once

#include "gemm_core/ptx/tma.cuh"
#include "sddmm/value.cuh"

namespace sddmm {

// The parameters of a kernel with results of type OUT. The lists are those of slot_lists.py, of slots
// of sums (staging_ring.cuh).
template <class OUT>
struct ListedArguments {
  gemm_core::ptx::TensorMap a, b;  // of (heads, m, k) and (heads, n, k)
  OUT* out;
  // For each nonzero its position in the output, and one more than the element of its slot with its sum.
  const int2* entries;
  const int* slot_starts;  // (4 * tile_count + 1,), the first entry of each slot
  const int2* tiles;       // (tile row, tile column) of each tile to compute
  i64 head_out;            // elements from head to head
  double alpha;
  int tile_count, heads, k;
  // The alignment of the maps rounds the size up to a multiple of 64.
  int unused0, unused1, unused2, unused3, unused4, unused5, unused6, unused7, unused8, unused9;
  int unused10, unused11, unused12, unused13, unused14, unused15, unused16;
};

// The tiles of all heads, which have the same.
struct ListedTiles {
  int per_head, count;  // of one head, of all

  // The head of the tile with this index among all. One head, as is usual, needs no division.
  __device__ __forceinline__ int head(int index) const {
    return count == per_head ? 0 : index / per_head;
  }
  // Its number in the lists; -1 if there is none.
  __device__ __forceinline__ int number(int index) const {
    return index < count ? index - head(index) * per_head : -1;
  }
};

}  // namespace sddmm
