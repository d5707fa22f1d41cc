// The second pass of spmm_gather: adds the pieces of each row that several blocks have summed. A
// block for each block of the first pass in which such a row ends; the pieces are added in an order
// that depends on their number alone. Limit: the latency of a few loads that depend on each other.
#include "gemm_core/parameters.cuh"
#include "sddmm/row_values.cuh"
#include "sddmm/search.cuh"

using namespace sddmm;

// What spmm_merge/host.py chooses, by macro.
struct Config {
  // The types of sums and of the result.
  using Acc = SDDMM_ACCUMULATOR;
  using Output = SDDMM_OUTPUT;
  // The number of columns of a slice.
  static constexpr int COLUMNS = SDDMM_COLUMNS;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of bytes of shared memory of a block.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Acc = Config::Acc;
constexpr int COLUMNS = Config::COLUMNS;
// The number of columns of a thread, and of pieces that the block loads at a time.
constexpr int VECTOR = COLUMNS < 4 ? COLUMNS : 4;
constexpr int THREADS_PER_PIECE = COLUMNS / VECTOR;
constexpr int PIECES = Config::THREADS / THREADS_PER_PIECE;
static_assert(Config::THREADS * VECTOR * sizeof(Acc) <= Config::SHARED_BYTES, "a sum per thread");

struct Arguments {
  const Acc* pieces;
  const int* records;  // see spmm_gather
  Config::Output* out;
  const Acc* addend;      // see spmm_gather; null where nothing is added
  const i64* out_rows;
  i64 head_out;  // elements from head to head
  int blocks, slices, k;
  double alpha;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

struct alignas(VECTOR * sizeof(Acc)) Vector {
  Acc x[VECTOR];
};

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const sums = reinterpret_cast<Vector*>(shared);
  const int part = blockIdx.x / p.blocks, last_block = blockIdx.x - part * p.blocks;
  const int row = p.records[2 * last_block + 1];
  if (row < 0) return;

  // The first block that begins within the row; the one before it holds where the row begins.
  i64 first_block[1] = {0}, high[1] = {last_block};
  warp_lower_bound(first_block, high, [&](int, i64 i) { return p.records[2 * i] >= row; });
  const int count = last_block - static_cast<int>(first_block[0]) + 2;
  const int own = threadIdx.x % THREADS_PER_PIECE, first = threadIdx.x / THREADS_PER_PIECE;
  const auto* const pieces =
      reinterpret_cast<const Vector*>(
          p.pieces + (static_cast<i64>(part) * p.blocks + first_block[0]) * 2 * COLUMNS) +
      own;
  Vector sum{};
#pragma unroll 8
  for (int i = first; i < count; i += PIECES) {
    // The second piece of the block before the first, then the first piece of each block.
    const Vector piece = pieces[(i == 0 ? -1 : 2 * (i - 1)) * static_cast<i64>(THREADS_PER_PIECE)];
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) sum.x[j] += piece.x[j];
  }
  sums[threadIdx.x] = sum;
  const int used = count < PIECES ? count : PIECES;
  for (int distance = PIECES / 2; distance > 0; distance /= 2) {
    if (distance >= used) continue;  // so many threads have pieces
    __syncthreads();
    if (first < distance)
#pragma unroll
      for (int j = 0; j < VECTOR; ++j)
        sums[threadIdx.x].x[j] += sums[threadIdx.x + distance * THREADS_PER_PIECE].x[j];
  }
  if (first != 0) return;
  const int head = part / p.slices, column = (part - head * p.slices) * COLUMNS + own * VECTOR;
  const bool adds = p.addend != nullptr;
  const Acc* const addend = adds ? p.addend + static_cast<i64>(row) * p.k + column : nullptr;
  const i64 out_row = adds ? p.out_rows[row] : row;
  Config::Output* const to = p.out + head * p.head_out + out_row * p.k + column;
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) {
    if (column + j >= p.k) continue;
    const Acc total = sums[threadIdx.x].x[j] * static_cast<Acc>(p.alpha);
    to[j] = Narrow<Config::Output>::from(adds ? total + addend[j] : total);
  }
}
