// What a plan must know of a pattern, in one pass over it: is it valid, how is it ordered, the row of
// each nonzero, and how many nonzeros each tile has. Limit: the bytes of the indices.
#include "gemm_core/numeric.cuh"

using gemm_core::i64;
using gemm_core::u32;

using IndexType = SDDMM_INDEX;
constexpr bool CSR = SDDMM_CSR;
constexpr int THREADS = 256;

// Bits of what is found (analysis.py).
constexpr u32 INVALID = 1, ROWS_FALL = 2, COLUMNS_FALL = 4;

struct Arguments {
  const IndexType *major, *cols;  // crow (m + 1,) of CSR, else the rows, (nnz,)
  int *rows, *cols_32;        // results (nnz,), or null
  int* counts;                // of nonzeros by tile, along the rows of tiles, zeros before; or null
  u32* found;                 // zero before
  i64 nnz;
  int m, n, block_m, block_n;
};

// The last of rows low .. high that begins at or before nonzero i.
__device__ __forceinline__ int row_of(const IndexType* crow, int low, int high, i64 i) {
  while (low < high) {
    const int middle = low + (high - low + 1) / 2;
    if (crow[middle] <= i) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__device__ __forceinline__ u32 check_crow(const Arguments& p, i64 i) {
  if (i > p.m) return 0;
  const IndexType begin = p.major[i];
  if (i == 0 && begin != 0) return INVALID;
  return begin <= (i < p.m ? p.major[i + 1] : p.nnz) && (i < p.m || begin == p.nnz) ? 0 : INVALID;
}

// A thread takes entry i of crow and nonzero i.
extern "C" __global__ void __launch_bounds__(THREADS) sddmm_kernel(const Arguments p) {
  constexpr u32 ALL = 0xffffffff;
  const i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
  u32 seen = CSR ? check_crow(p, i) : 0;
  int tile = -1;
  if (i < p.nnz) {
    const i64 col = p.cols[i];
    i64 row;
    bool continues;  // the row of the nonzero before
    if constexpr (CSR) {
      row = p.m > 0 ? row_of(p.major, 0, p.m - 1, i) : -1;
      continues = row >= 0 && p.major[row] < i;
    } else {
      row = p.major[i];
      continues = i > 0 && p.major[i - 1] == row;
      if (i > 0 && p.major[i - 1] > row) seen |= ROWS_FALL;
    }
    if (i > 0 && continues && p.cols[i - 1] > col) seen |= COLUMNS_FALL;
    const bool inside = row >= 0 && row < p.m && col >= 0 && col < p.n;
    if (!inside) seen |= INVALID;
    if (p.rows != nullptr) p.rows[i] = static_cast<int>(row);
    if (p.cols_32 != nullptr) p.cols_32[i] = static_cast<int>(col);
    if (inside && p.counts != nullptr) {
      const int across = (p.n + p.block_n - 1) / p.block_n;
      tile = static_cast<int>(row) / p.block_m * across + static_cast<int>(col) / p.block_n;
    }
  }
  if (p.counts != nullptr) {
    // One addition for all lanes of a tile: they are neighbours, and tiles may be very full.
    const u32 alike = __match_any_sync(ALL, tile);
    if (tile >= 0 && threadIdx.x % 32 == __ffs(alike) - 1) atomicAdd(p.counts + tile, __popc(alike));
  }
  if (seen != 0) atomicOr(p.found, seen);
}
