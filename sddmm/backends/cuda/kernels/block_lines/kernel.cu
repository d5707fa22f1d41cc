// Lists the tiles of a block pattern by stripes, which are rows of tiles, as tile_lines does those of
// nonzeros: adds tiles that follow from the indices of blocks, without any of a nonzero. Limit: the
// bytes of the lines, written once.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"

using gemm_core::i64;
using gemm_core::u32;

// What tile_lines/host.py chooses, by macro.
struct Config {
  // The number of threads of a block, each of which writes one line.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of lines of a tile, and of positions of each.
  static constexpr int SIDE = SDDMM_SIDE;
  // Whether the tiles are those of the transpose: lines are its columns.
  static constexpr bool BY_COLUMN = SDDMM_BY_COLUMN;
};
constexpr int SIDE = Config::SIDE;
static_assert(SIDE == 64 || SIDE <= 32, "a full line has whole words or a part of one");

struct Arguments {
  // The row and the column of each block, by rows of blocks of W, and its number, or null if they come
  // in order. offsets: the first block of each row, and the end of the last.
  const int *rows, *cols, *perm, *offsets;
  int4* lines;   // output: of each tile its lines: (first nonzero, low and high word of the mask, 0)
  int* columns;  // output: of each tile the first column of W
  i64 line_count;
  int block_m, block_n;  // rows and columns of a block as it is stored
};
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  const i64 index = static_cast<i64>(blockIdx.x) * Config::THREADS + threadIdx.x;
  if (index >= p.line_count) return;
  // A block of W has tiles in `down` stripes, `across` in each.
  const int down = (Config::BY_COLUMN ? p.block_n : p.block_m) / SIDE;
  const int across = (Config::BY_COLUMN ? p.block_m : p.block_n) / SIDE;
  const int line = static_cast<int>(index % SIDE);
  const int tile = static_cast<int>(index / SIDE);
  const int j = tile % across, i = tile / across % down, entry = tile / across / down;

  const int row = p.rows[entry], first = p.offsets[row], count = p.offsets[row + 1] - first;
  const i64 place = (static_cast<i64>(first) * down + static_cast<i64>(i) * count + entry - first) *
                        across + j;
  const int number = p.perm == nullptr ? entry : p.perm[entry];
  const int own_row = (Config::BY_COLUMN ? j : i) * SIDE + line;
  const int own_column = (Config::BY_COLUMN ? i : j) * SIDE;
  const i64 nonzero = static_cast<i64>(number) * p.block_m * p.block_n +
                      static_cast<i64>(own_row) * p.block_n + own_column;
  const u32 low = SIDE < 32 ? (1u << SIDE % 32) - 1 : 0xffffffff;
  const u32 high = SIDE < 64 ? 0 : 0xffffffff;
  p.lines[place * SIDE + line] = int4{static_cast<int>(nonzero), static_cast<int>(low),
                                      static_cast<int>(high), 0};
  if (line == 0)
    p.columns[place] = p.cols[entry] * (Config::BY_COLUMN ? p.block_m : p.block_n) + j * SIDE;
}
