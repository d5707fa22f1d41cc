// Lists the tiles that have nonzeros, by where the rows of all tiles begin, and tells the host how
// many there are: so a first call launches no empty ones. Blocks append what they find, in any
// order. Limit: the bytes of the offsets, read once.
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

constexpr int WARPS = Config::THREADS / 32;
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
  // blocks_across: those that share a row of tiles.
  int tiles_across, blocks_across, block_m;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// Whether the tile of this lane has nonzeros, bit by bit, in all lanes of the first warp.
__device__ __forceinline__ u32 find_tiles(const Arguments& p, int tile_row, int column,
                                          u32* found) {
  const int warp = threadIdx.x / 32, stride = p.tiles_across + 1;
  const int* const first = p.offsets + tile_row * p.block_m * stride + column;
  bool has_nonzeros = false;
  if (column < p.tiles_across) {
#pragma unroll 8
    for (int row = warp; row < p.block_m; row += WARPS)
      has_nonzeros |= first[row * stride] < first[row * stride + 1];
  }
  const u32 of_warp = __ballot_sync(FULL_MASK, has_nonzeros);
  if (threadIdx.x % 32 == 0) found[warp] = of_warp;
  __syncthreads();
  u32 all = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) all |= found[w];
  return all;
}

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int block = static_cast<int>(blockIdx.x), lane = threadIdx.x % 32;
  const int tile_row = block / p.blocks_across;
  const int column = (block - tile_row * p.blocks_across) * 32 + lane;
  const u32 tiles = find_tiles(p, tile_row, column, reinterpret_cast<u32*>(shared));
  if (threadIdx.x >= 32) return;
  // One word counts both: tiles below, the blocks that are done above.
  constexpr u64 DONE = u64{1} << 32;
  const u64 own = DONE + __popc(tiles);
  u64 before = 0;
  if (lane == 0) {
    if (block == 0) {
      *p.next_state = 0;
      __threadfence();  // before `state` counts this block
    }
    before = atomicAdd(p.state, own);
    if ((before + own) / DONE == gridDim.x) *p.result = (before + own) % DONE;
  }
  const int position = __shfl_sync(FULL_MASK, static_cast<int>(before % DONE), 0);
  if (tiles >> lane & 1)
    p.tiles[position + __popc(tiles & ((1u << lane) - 1))] = make_int2(tile_row, column);
}
