// The row of each nonzero of a CSR pattern, and whether its indices are valid: adds to analyse that
// a warp needs no other, so that many hide each other's latencies, and counts nothing. Limit: the
// bytes of the indices; for a small pattern, the loads that depend on each other.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"
#include "sddmm/expand_rows.cuh"

using namespace sddmm;
using gemm_core::i64;
using gemm_core::u32;
using u64 = unsigned long long;

// What expand.py chooses, by macro.
struct Config {
  // The type of the caller's indices: int or i64.
  using IndexType = SDDMM_INDEX;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of nonzeros, and of entries of crow, that a thread reads at once.
  static constexpr int ITEMS_PER_THREAD = SDDMM_ITEMS_PER_THREAD;
  // The number of bytes of dynamic shared memory that a block has.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using IndexType = Config::IndexType;
constexpr int THREADS = Config::THREADS, ITEMS_PER_THREAD = Config::ITEMS_PER_THREAD;
constexpr int ITEMS_PER_WARP = 32 * ITEMS_PER_THREAD;

static_assert(THREADS / 32 * ROW_WINDOW * 4 <= Config::SHARED_BYTES, "each warp has a window");

struct Arguments {
  const IndexType *crow_indices, *col_indices;  // (m + 1,) and (nnz,)
  // Outputs, (nnz,): the row of each nonzero; and its column in 32 bits, or null.
  int *row_ids, *cols_int32;
  // What the blocks have counted; zero before the launch, which sets next_state to zero for its
  // successor.
  u64 *state, *next_state;
  // Pinned host memory: -1 until all is done, then whether the pattern is invalid. The host polls
  // it.
  u64* result;
  i64 nnz, nnz_per_warp;  // the second a multiple of ITEMS_PER_WARP
  int m, n;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// Stores the rows, and on request the columns, of a warp's nonzeros from `begin` on; `last_row` is that
// of a nonzero not after them, and then of their last. Returns whether the columns are in range.
__device__ __forceinline__ bool expand(const Arguments& p, i64 begin, int* window, int& last_row) {
  const i64 own = begin + threadIdx.x % 32;
  IndexType col[ITEMS_PER_THREAD];
#pragma unroll
  for (int j = 0; j < ITEMS_PER_THREAD; ++j)
    col[j] = own + 32 * j < p.nnz ? p.col_indices[own + 32 * j] : 0;
  int row[ITEMS_PER_THREAD];
  find_rows(p.crow_indices, p.m, p.nnz, begin, last_row, window, row);
  last_row = __shfl_sync(FULL_MASK, row[ITEMS_PER_THREAD - 1], 31);
  bool valid = true;
#pragma unroll
  for (int j = 0; j < ITEMS_PER_THREAD; ++j) {
    if (own + 32 * j >= p.nnz) continue;
    valid &= static_cast<u64>(col[j]) < static_cast<u64>(p.n);
    p.row_ids[own + 32 * j] = row[j];
    if (p.cols_int32 != nullptr) p.cols_int32[own + 32 * j] = static_cast<int>(col[j]);
  }
  return valid;
}

// Each warp has consecutive nonzeros, so that it searches a row but once; the last block to be done
// reports.
extern "C" __global__ void __launch_bounds__(THREADS, sizeof(IndexType) == 4 ? 5 : 4)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int warp = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
  int* const window = reinterpret_cast<int*>(shared) + threadIdx.x / 32 * ROW_WINDOW;
  const i64 first = static_cast<i64>(blockIdx.x) * THREADS * ITEMS_PER_THREAD + threadIdx.x;
  const i64 stride = static_cast<i64>(gridDim.x) * THREADS * ITEMS_PER_THREAD;
  bool valid = true;
  for (i64 i = first; i <= p.m; i += stride)
    valid &= check_rows<ITEMS_PER_THREAD>(p.crow_indices, p.m, p.nnz, i, THREADS);
  const i64 begin = warp * p.nnz_per_warp;
  const i64 end = begin + p.nnz_per_warp < p.nnz ? begin + p.nnz_per_warp : p.nnz;
  if (begin < end) {
    int row = find_row(p.crow_indices, 0, p.m - 1, begin);
    for (i64 i = begin; i < end; i += ITEMS_PER_WARP) valid &= expand(p, i, window, row);
  }
  // One word counts both: the blocks that are done below, the warps that saw an error above.
  constexpr u64 INVALID = u64{1} << 32;
  if (!__all_sync(FULL_MASK, valid) && threadIdx.x % 32 == 0) atomicAdd(p.state, INVALID);
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) *p.next_state = 0;
  __threadfence();  // before `state` counts this block
  const u64 done = atomicAdd(p.state, u64{1}) + 1;
  if (done % INVALID == gridDim.x) *p.result = done >= INVALID;
}
