// Lists the tiles that have nonzeros, by where the rows of all tiles begin, and tells the host how
// many there are: so a first call launches no empty ones. Blocks append in any order, but tiles one
// upon the other together, as clusters share their columns. Limit: the bytes of the offsets.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"
#include "sddmm/warp.cuh"

using namespace sddmm;
using gemm_core::u32;
using u64 = unsigned long long;

// What tile_list/host.py chooses, by macro.
struct Config {
  // The number of threads of a block, whose warps share the rows of 32 neighbouring tiles.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of bytes of dynamic shared memory of a block: a word of each warp.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

constexpr int WARPS = Config::THREADS / 32, ROWS = 2;  // the rows of tiles of a block
static_assert(WARPS * sizeof(u32) <= Config::SHARED_BYTES, "each warp has a word");

struct Arguments {
  // Where the rows of tiles begin: tiles_across + 1 entries for each row of the matrix, block_m rows
  // for each row of tiles.
  const int* offsets;
  int2* tiles;  // output: (tile row, tile column) of each tile
  // What the blocks have found; zero before the launch, which sets next_state to zero for its
  // successor.
  u64 *state, *next_state;
  u64* result;  // pinned host memory: the number of tiles. The host polls it.
  // blocks_across: those that share two rows of tiles. block_m: the rows of a tile.
  int tiles_down, tiles_across, blocks_across, block_m;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// Which of 32 tiles side by side have nonzeros, bit by bit, in one of ROWS rows of tiles each.
struct Found {
  u32 tiles[ROWS];
};

// All threads of the block call it: a half of its warps for each row of tiles. shared: a word of each
// warp. column: the tile column of this lane.
__device__ __forceinline__ Found find_tiles(const Arguments& p, int first_row, int column,
                                            u32* shared) {
  constexpr int WARPS_OF_ROW = WARPS / ROWS;
  const int warp = threadIdx.x / 32, stride = p.tiles_across + 1;
  const int tile_row = first_row + warp / WARPS_OF_ROW;
  bool has_nonzeros = false;
  if (tile_row < p.tiles_down && column < p.tiles_across) {
    const int* const first = p.offsets + tile_row * p.block_m * stride + column;
#pragma unroll 8
    for (int row = warp % WARPS_OF_ROW; row < p.block_m; row += WARPS_OF_ROW)
      has_nonzeros |= first[row * stride] < first[row * stride + 1];
  }
  const u32 of_warp = __ballot_sync(FULL_MASK, has_nonzeros);
  if (threadIdx.x % 32 == 0) shared[warp] = of_warp;
  __syncthreads();
  Found found = {};
#pragma unroll
  for (int w = 0; w < WARPS; ++w) found.tiles[w / WARPS_OF_ROW] |= shared[w];
  return found;
}

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int block = static_cast<int>(blockIdx.x), lane = threadIdx.x % 32;
  const int pair = block / p.blocks_across, first_row = ROWS * pair;
  const int column = (block - pair * p.blocks_across) * 32 + lane;
  const Found found = find_tiles(p, first_row, column, reinterpret_cast<u32*>(shared));
  if (threadIdx.x >= 32) return;
  // One word counts both: tiles below, the blocks that are done above.
  constexpr u64 DONE = u64{1} << 32;
  u64 own = DONE, before = 0;
  for (const u32 tiles : found.tiles) own += __popc(tiles);
  if (lane == 0) {
    if (block == 0) {
      *p.next_state = 0;
      __threadfence();  // before `state` counts this block
    }
    before = atomicAdd(p.state, own);
    if ((before + own) / DONE == gridDim.x) *p.result = (before + own) % DONE;
  }
  int position = __shfl_sync(FULL_MASK, static_cast<int>(before % DONE), 0);
  for (const u32 tiles : found.tiles) position += __popc(tiles & ((1u << lane) - 1));
#pragma unroll
  for (int row = 0; row < ROWS; ++row)
    if (found.tiles[row] >> lane & 1) p.tiles[position++] = make_int2(first_row + row, column);
}
