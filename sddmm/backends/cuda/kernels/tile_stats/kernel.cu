// Counts tiles of one size by their nonzeros: full tiles, and tiles and their nonzeros by class. A
// tile is made of whole base tiles, whose nonzeros are known; a thread adds up those of a tile.
// Limit: the loads of the counts of base tiles.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"

using gemm_core::i64;
using gemm_core::u32;
using u64 = unsigned long long;

// What kernels/tile_stats/host.py chooses, by macro.
struct Config {
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of classes: tiles of class c hold at least 2^c nonzeros, but fewer than 2^(c+1).
  static constexpr int CLASSES = SDDMM_CLASSES;
  // The number of 64-bit words that the host keeps for the statistics, and of bytes of dynamic
  // shared memory that a block has.
  static constexpr int STATS_WORDS = SDDMM_STATS_WORDS, SHARED_BYTES = SDDMM_SHARED_BYTES;
};

constexpr int THREADS = Config::THREADS, CLASSES = Config::CLASSES;

// Counts of tiles. Both arrays have an entry for each class.
template <class Count>
struct Stats {
  u64 nnz[CLASSES];
  Count tiles[CLASSES], full;
};

static_assert(sizeof(Stats<u64>) == 8 * Config::STATS_WORDS, "host.py reads these words");
static_assert(sizeof(Stats<u32>) <= Config::SHARED_BYTES, "the launch allocates SHARED_BYTES");

struct Arguments {
  const int* base_nnz;  // (base_rows, base_columns): the nonzeros of each base tile
  Stats<u64>* stats;    // zero before the launch
  int base_rows, base_columns;
  int rows, columns;              // of base tiles in a tile
  int block_m, block_n, m, n;     // the size of a tile and of the matrix
  int tiles_across, tiles;        // tiles in a row of tiles, and in all
};
GEMM_CORE_CHECK_STRUCT(Arguments)

__device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }

// The number of nonzeros of the tile at (row, column) of the tiles.
__device__ __forceinline__ int count_nonzeros(const Arguments& p, int row, int column) {
  const int last_row = smaller((row + 1) * p.rows, p.base_rows);
  const int last_column = smaller((column + 1) * p.columns, p.base_columns);
  int sum = 0;
  for (int i = row * p.rows; i < last_row; ++i)
    for (int j = column * p.columns; j < last_column; ++j)
      sum += p.base_nnz[static_cast<i64>(i) * p.base_columns + j];
  return sum;
}

// The number of entries of the matrix in that tile.
__device__ __forceinline__ int count_entries(const Arguments& p, int row, int column) {
  return smaller(p.block_m, p.m - row * p.block_m) * smaller(p.block_n, p.n - column * p.block_n);
}

// Each thread classifies its tiles; the block adds them up in shared memory, then to the results.
extern "C" __global__ void __launch_bounds__(THREADS) sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  Stats<u32>& block = *reinterpret_cast<Stats<u32>*>(shared);
  for (int i = threadIdx.x; i < CLASSES; i += THREADS) block.nnz[i] = block.tiles[i] = 0;
  if (threadIdx.x == 0) block.full = 0;
  __syncthreads();
  for (i64 tile = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; tile < p.tiles;
       tile += static_cast<i64>(gridDim.x) * THREADS) {
    const int row = static_cast<int>(tile) / p.tiles_across;
    const int column = static_cast<int>(tile) - row * p.tiles_across;
    const int nnz = count_nonzeros(p, row, column);
    if (nnz == 0) continue;
    const int nnz_class = 31 - __clz(nnz);
    atomicAdd(block.tiles + nnz_class, 1u);
    atomicAdd(block.nnz + nnz_class, static_cast<u64>(nnz));
    if (nnz >= count_entries(p, row, column)) atomicAdd(&block.full, 1u);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < CLASSES; i += THREADS) {
    if (block.tiles[i] == 0) continue;
    atomicAdd(p.stats->nnz + i, block.nnz[i]);
    atomicAdd(p.stats->tiles + i, static_cast<u64>(block.tiles[i]));
  }
  if (threadIdx.x == 0 && block.full > 0)
    atomicAdd(&p.stats->full, static_cast<u64>(block.full));
}
