// SDDMM of full blocks in half types by mma.sync: a warp loads the rows of a tile straight into
// fragments; adds to the dense tiles that no list of nonzeros is read and that nothing goes through
// shared memory. Limit: the rows of tiles out of L2, and the stores of the values.
#include "gemm_core/ptx/mma.cuh"
#include "sddmm/block_tile.cuh"
#include "sddmm/chunk.cuh"

using namespace sddmm;

// What block_mma/host.py chooses, by macro.
struct Config {
  // The types of the operands and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of rows and of columns of the tile of a warp.
  static constexpr int WARP_M = SDDMM_WARP_M, WARP_N = SDDMM_WARP_N;
  // The number of warps down and across a tile; a block computes as many tiles as it has warps for.
  static constexpr int WARPS_M = SDDMM_WARPS_M, WARPS_N = SDDMM_WARPS_N;
  // The number of steps of k whose loads are in flight at once.
  static constexpr int STEPS_IN_FLIGHT = SDDMM_STEPS_IN_FLIGHT;
  // The number of bytes of one load, and whether rows end with a whole step of k.
  static constexpr int LOAD_BYTES = SDDMM_LOAD_BYTES;
  static constexpr bool NO_TAIL = SDDMM_NO_TAIL;
  // The number of threads of a block, and of blocks that the registers of a multiprocessor hold.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
};

// Fragments of 16 rows of A and of 8 columns of B that a warp multiplies.
constexpr int FRAGMENTS_M = Config::WARP_M / 16, FRAGMENTS_N = Config::WARP_N / 8;
// Elements of k that the four lanes of a row load at once, 16 bytes each: two products' worth.
constexpr int STEP_K = 32;
// The number of neighbours of a row that a lane stores at once: 16 bytes, or all that it holds.
constexpr int PER_16_BYTES = 16 / sizeof(Config::Output);
constexpr int WIDTH = PER_16_BYTES < 2 * FRAGMENTS_N ? PER_16_BYTES : 2 * FRAGMENTS_N;
constexpr int FRAGMENTS_PER_STORE = WIDTH / 2;

// The column of the tile that is column `c` of fragment j. Columns are dealt to the fragments so
// that what a lane holds of FRAGMENTS_PER_STORE fragments, columns 2 t and 2 t + 1 of each, are
// neighbours in memory.
__device__ __forceinline__ int tile_column(int j, int c) {
  return j / FRAGMENTS_PER_STORE * 4 * WIDTH + c / 2 * WIDTH + j % FRAGMENTS_PER_STORE * 2 + c % 2;
}

using Arguments = BlockArguments<Config::Element, Config::Output>;
GEMM_CORE_CHECK_STRUCT(Arguments)

// The rows of A and of B that a lane loads from: rows g and g + 8 of each fragment of A, and column
// g of each fragment of B, where the lane is 4 g + t. Past the edge of a block the last row is
// loaded again: it only reaches sums that are not stored.
struct LaneRows {
  const Config::Element *a[2 * FRAGMENTS_M], *b[FRAGMENTS_N];

  __device__ __forceinline__ LaneRows(const Arguments& p, int head, int m0, int n0, int rows,
                                      int columns) {
    const int g = threadIdx.x % 32 / 4;
    const Config::Element* const first_a = p.a + head * p.head_a + m0 * p.pitch_a;
    const Config::Element* const first_b = p.b + head * p.head_b + n0 * p.pitch_b;
#pragma unroll
    for (int i = 0; i < 2 * FRAGMENTS_M; ++i) {
      const int row = 8 * i + g;
      a[i] = first_a + (row < rows ? row : rows - 1) * p.pitch_a;
    }
#pragma unroll
    for (int j = 0; j < FRAGMENTS_N; ++j) {
      const int column = tile_column(j, g);
      b[j] = first_b + (column < columns ? column : columns - 1) * p.pitch_b;
    }
  }
};

// What a lane loads of one step of k, and its products. A lane passes a 16-byte chunk of its rows
// to two instructions: which k they are does not matter as long as both operands agree.
struct Step {
  Chunk a[2 * FRAGMENTS_M], b[FRAGMENTS_N];

  __device__ __forceinline__ void load(const LaneRows& rows, int first, int k) {
#pragma unroll
    for (int i = 0; i < 2 * FRAGMENTS_M; ++i)
      a[i] = load_chunk<Config::LOAD_BYTES, Config::NO_TAIL>(rows.a[i], first, k);
#pragma unroll
    for (int j = 0; j < FRAGMENTS_N; ++j)
      b[j] = load_chunk<Config::LOAD_BYTES, Config::NO_TAIL>(rows.b[j], first, k);
  }

  __device__ __forceinline__ void multiply(float (&sums)[FRAGMENTS_M][FRAGMENTS_N][4]) const {
#pragma unroll
    for (int w = 0; w < 4; w += 2)
#pragma unroll
      for (int i = 0; i < FRAGMENTS_M; ++i) {
        const u32 rows[4] = {a[2 * i].word[w], a[2 * i + 1].word[w], a[2 * i].word[w + 1],
                             a[2 * i + 1].word[w + 1]};
#pragma unroll
        for (int j = 0; j < FRAGMENTS_N; ++j)
          gemm_core::ptx::mma_m16n8k16(sums[i][j], rows, b[j].word[w], b[j].word[w + 1],
                                       Config::Element{});
      }
  }
};

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  constexpr int WARPS = Config::WARPS_M * Config::WARPS_N, TILES = Config::THREADS / 32 / WARPS;
  constexpr int TILE_M = Config::WARP_M * Config::WARPS_M, TILE_N = Config::WARP_N * Config::WARPS_N;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const i64 number = static_cast<i64>(blockIdx.x) * TILES + warp / WARPS;
  if (number >= p.tile_count) return;
  const BlockTile<TILE_M, TILE_N> tile(p, static_cast<int>(number));
  // The part of this warp.
  const int top = warp % WARPS / Config::WARPS_N * Config::WARP_M;
  const int left = warp % WARPS % Config::WARPS_N * Config::WARP_N;
  if (top >= tile.rows || left >= tile.columns) return;

  const LaneRows rows(p, tile.head, tile.m0 + top, tile.n0 + left, tile.rows - top,
                      tile.columns - left);
  float sums[FRAGMENTS_M][FRAGMENTS_N][4] = {};
  constexpr int STEPS = Config::STEPS_IN_FLIGHT;
  const int lane_k = lane % 4 * CHUNK_ELEMENTS<Config::Element>;
#pragma unroll 1
  for (int k0 = 0; k0 < p.k; k0 += STEPS * STEP_K) {
    Step steps[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
      if (s == 0 || k0 + s * STEP_K < p.k) steps[s].load(rows, k0 + s * STEP_K + lane_k, p.k);
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
      if (s == 0 || k0 + s * STEP_K < p.k) steps[s].multiply(sums);
  }

  const BlockStore<Config::Element, Config::Output, WIDTH> block_store(p, tile);
  block_store.all([&](const auto& visit) {
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < FRAGMENTS_N; j += FRAGMENTS_PER_STORE) {
          float visited[WIDTH];
#pragma unroll
          for (int e = 0; e < WIDTH; ++e) visited[e] = sums[i][j + e / 2][2 * half + e % 2];
          visit(top + 16 * i + 8 * half + lane / 4, left + tile_column(j, lane % 4 * 2), visited);
#pragma unroll
          for (int e = 0; e < WIDTH; ++e) sums[i][j + e / 2][2 * half + e % 2] = visited[e];
        }
  });
}
