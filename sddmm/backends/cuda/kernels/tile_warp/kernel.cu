// SDDMM by small dense tiles, a warp each: operands from L2 to registers, sums from registers to the
// output; adds to tile_mma tiles as small as the full ones of a pattern, without barriers. Limit:
// L2's rate, as a row of an operand serves the 16 or 32 entries of a tile's row or column only.
#include "gemm_core/parameters.cuh"
#include "gemm_core/ptx/mma.cuh"
#include "sddmm/chunk.cuh"
#include "sddmm/store_run.cuh"

using namespace sddmm;

// What tile_warp/host.py chooses, by macro.
struct Config {
  // The types of the operands, always half precision, and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of fragments of 16 rows down a tile, and of 8 columns across it.
  static constexpr int FRAGMENTS_M = SDDMM_FRAGMENTS_M, FRAGMENTS_N = SDDMM_FRAGMENTS_N;
  // The number of bytes of one load; every row starts and ends at a multiple of it.
  static constexpr int LOAD_BYTES = SDDMM_LOAD_BYTES;
  // The number of 64-byte steps of a row that are loaded before the first is multiplied.
  static constexpr int STEPS = SDDMM_STEPS;
  // Whether these are the whole row; then rows of a stay in registers for the next tile.
  static constexpr bool ONE_PASS = SDDMM_ONE_PASS;
  // Whether k is a multiple of what STEPS hold.
  static constexpr bool NO_TAIL = SDDMM_NO_TAIL;
  // Whether `rows` are (first nonzero, mask of columns); else (first nonzero, end).
  static constexpr bool MASKED = SDDMM_MASKED;
  // The number of threads of a block, and of blocks that the registers of a multiprocessor must
  // hold.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
};

using Element = Config::Element;
using Output = Config::Output;
constexpr int FRAGMENTS_M = Config::FRAGMENTS_M, FRAGMENTS_N = Config::FRAGMENTS_N;
constexpr int BLOCK_M = 16 * FRAGMENTS_M, BLOCK_N = 8 * FRAGMENTS_N;
// The number of neighbouring columns of a tile whose sums a lane has.
constexpr int LANE_COLUMNS = 2 * FRAGMENTS_N;
// The number of elements of k in a step, of which a lane holds a chunk.
constexpr int STEP_K = 64 / sizeof(Element);

struct Arguments {
  const Element *a, *b, *values;  // a is (m, k); b is (n, k); values may be null
  Output* out;
  const int *cols, *perm;        // (nnz,); perm may be null
  const int2* tiles;             // (tile row, tile column) of each tile, by rows
  const int2* rows;              // of each row of each tile; see Config::MASKED
  i64 pitch_a, pitch_b;          // elements from row to row
  i64 head_a, head_b, head_out;  // elements from head to head
  int tile_count, tiles_per_warp, warps_per_head, heads;
  int m, n, k;
  double alpha;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// The chunks of one row of an operand: of one step, of lane t of the four that share the row.
using Chunks = Chunk[Config::STEPS];

__device__ __forceinline__ void load_chunks(Chunks& chunks, const Element* row, int first, int k) {
#pragma unroll
  for (int s = 0; s < Config::STEPS; ++s)
    chunks[s] = load_chunk<Config::LOAD_BYTES, Config::NO_TAIL>(row, first + s * STEP_K, k);
}

// Rows 16 i + 8 h + lane / 4 of a tile's operand A; rows past the last are copies of it.
struct RowsOfA {
  const Element* row[FRAGMENTS_M][2];
  Chunks chunks[FRAGMENTS_M][2];

  __device__ __forceinline__ void find(const Element* a, i64 pitch, int m0, int m) {
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int own = m0 + 16 * i + 8 * h + static_cast<int>(threadIdx.x) % 32 / 4;
        row[i][h] = a + (own < m ? own : m - 1) * pitch;
      }
  }
  __device__ __forceinline__ void load(int first, int k) {
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) load_chunks(chunks[i][h], row[i][h], first, k);
  }
};

// The columns of a tile's operand B, one of each fragment. Column c of fragment j is column
// c / 2 * LANE_COLUMNS + 2 j + c % 2 of the tile, so that the sums of a lane are neighbours.
struct ColumnsOfB {
  const Element* column[FRAGMENTS_N];
  Chunks chunks[FRAGMENTS_N];

  __device__ __forceinline__ void find(const Element* b, i64 pitch, int n0, int n) {
    const int c = threadIdx.x % 32 / 4;
#pragma unroll
    for (int j = 0; j < FRAGMENTS_N; ++j) {
      const int own = n0 + c / 2 * LANE_COLUMNS + 2 * j + c % 2;
      column[j] = b + (own < n ? own : n - 1) * pitch;
    }
  }
  __device__ __forceinline__ void load(int first, int k) {
#pragma unroll
    for (int j = 0; j < FRAGMENTS_N; ++j) load_chunks(chunks[j], column[j], first, k);
  }
};

// sums[i][h][c]: row 16 i + 8 h + lane / 4, column lane % 4 * LANE_COLUMNS + c of the tile.
using Sums = float[FRAGMENTS_M][2][LANE_COLUMNS];

// Which k a lane's words hold does not matter to a product, as both operands agree: a step, loaded
// as one chunk of 16 bytes a lane, feeds two products without a shuffle.
__device__ __forceinline__ void multiply(Sums& sums, const RowsOfA& a, const ColumnsOfB& b) {
#pragma unroll
  for (int s = 0; s < Config::STEPS; ++s)
#pragma unroll
    for (int w = 0; w < 4; w += 2)
#pragma unroll
      for (int i = 0; i < FRAGMENTS_M; ++i) {
        const Chunk &upper = a.chunks[i][0][s], &lower = a.chunks[i][1][s];
        const u32 rows[4] = {upper.word[w], lower.word[w], upper.word[w + 1], lower.word[w + 1]};
#pragma unroll
        for (int j = 0; j < FRAGMENTS_N; ++j) {
          const Chunk& column = b.chunks[j][s];
          float fragment[4] = {sums[i][0][2 * j], sums[i][0][2 * j + 1], sums[i][1][2 * j],
                               sums[i][1][2 * j + 1]};
          gemm_core::ptx::mma_m16n8k16(fragment, rows, column.word[w], column.word[w + 1],
                                       Element{});
          sums[i][0][2 * j] = fragment[0], sums[i][0][2 * j + 1] = fragment[1];
          sums[i][1][2 * j] = fragment[2], sums[i][1][2 * j + 1] = fragment[3];
        }
      }
}

// The nonzeros of a lane's part of one row, where `row` is (first nonzero, mask of columns): bit c of
// `columns` is set if the lane's column c holds one, and `first` is the first of them.
struct RowPart {
  u32 columns;
  int first;

  __device__ __forceinline__ RowPart(int2 row, int column)
      : columns(static_cast<u32>(row.y) >> column & (1u << LANE_COLUMNS) - 1),
        first(row.x + __popc(row.y & (1u << column) - 1)) {}
  __device__ __forceinline__ bool is_full() const { return columns == (1u << LANE_COLUMNS) - 1; }
  __device__ __forceinline__ bool has(int c) const { return columns >> c & 1; }
};

// Multiplies the sums of a lane's part of one row by the values of its nonzeros.
__device__ __forceinline__ void weigh_row(float (&sums)[LANE_COLUMNS], const RowPart& part,
                                          const Arguments& p) {
  int nonzero = part.first;
#pragma unroll
  for (int c = 0; c < LANE_COLUMNS; ++c) {
    if (!part.has(c)) continue;
    sums[c] *= widened(load_read_only(p.values + (p.perm == nullptr ? nonzero : p.perm[nonzero])));
    ++nonzero;
  }
}

// Stores the sums of a lane's part of one row, times alpha.
__device__ __forceinline__ void store_row(float (&sums)[LANE_COLUMNS], const RowPart& part,
                                          const int* perm, float alpha, Output* out) {
  if (part.columns == 0) return;
#pragma unroll
  for (int c = 0; c < LANE_COLUMNS; ++c) sums[c] *= alpha;
  if (part.is_full() && perm == nullptr) {
    store_run(out + part.first, sums);
    return;
  }
  int nonzero = part.first;
#pragma unroll
  for (int c = 0; c < LANE_COLUMNS; ++c) {
    if (!part.has(c)) continue;
    out[perm == nullptr ? nonzero : perm[nonzero]] = Narrow<Output>::from(sums[c]);
    ++nonzero;
  }
}

// Stores the nonzeros row.x .. row.y - 1 of one row that are in the lane's columns, which may be
// there more than once. first_column: the lane's first one, in the matrix.
__device__ __forceinline__ void search_row(const float (&sums)[LANE_COLUMNS], int2 row,
                                           int first_column, const Arguments& p,
                                           const Result<Element, Output>& result) {
  for (int nonzero = row.x; nonzero < row.y; ++nonzero) {
    const int own = p.cols[nonzero] - first_column;
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; ++c)
      if (own == c) result.store(p.perm == nullptr ? nonzero : p.perm[nonzero], sums[c]);
  }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  const int warp = blockIdx.x * (Config::THREADS / 32) + threadIdx.x / 32;
  const int head = warp / p.warps_per_head;
  if (head >= p.heads) return;
  const int lane = threadIdx.x % 32, column = lane % 4 * LANE_COLUMNS;
  const int first_k = lane % 4 * CHUNK_ELEMENTS<Element>;
  const int first = (warp - head * p.warps_per_head) * p.tiles_per_warp;
  const int end = first + p.tiles_per_warp < p.tile_count ? first + p.tiles_per_warp : p.tile_count;
  const Element *const a = p.a + head * p.head_a, *const b = p.b + head * p.head_b;
  const Result<Element, Output> result{p.out + head * p.head_out, p.values,
                                       static_cast<float>(p.alpha)};
  RowsOfA rows_of_a;
  ColumnsOfB columns_of_b;
  int tile_row = -1;
  int2 next = p.tiles[first < end ? first : 0];
  for (int tile = first; tile < end; ++tile) {
    const int2 coord = next;
    if (tile + 1 < end) next = p.tiles[tile + 1];
    int2 rows[FRAGMENTS_M][2];
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        rows[i][h] = p.rows[static_cast<i64>(tile) * BLOCK_M + 16 * i + 8 * h + lane / 4];
    if (coord.x != tile_row) {
      tile_row = coord.x;
      rows_of_a.find(a, p.pitch_a, coord.x * BLOCK_M, p.m);
      if (Config::ONE_PASS) rows_of_a.load(first_k, p.k);
    }
    columns_of_b.find(b, p.pitch_b, coord.y * BLOCK_N, p.n);
    Sums sums = {};
    if constexpr (Config::ONE_PASS) {
      columns_of_b.load(first_k, p.k);
      multiply(sums, rows_of_a, columns_of_b);
    } else {
#pragma unroll 1  // the loads of one pass fill the registers
      for (int k = 0; k < p.k; k += Config::STEPS * STEP_K) {
        rows_of_a.load(k + first_k, p.k);
        columns_of_b.load(k + first_k, p.k);
        multiply(sums, rows_of_a, columns_of_b);
      }
    }
    // Two loops, so that all values are loaded before the first result is stored.
    if (Config::MASKED && p.values != nullptr) {
#pragma unroll
      for (int i = 0; i < FRAGMENTS_M; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) weigh_row(sums[i][h], RowPart(rows[i][h], column), p);
    }
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if constexpr (Config::MASKED) {
          store_row(sums[i][h], RowPart(rows[i][h], column), p.perm, result.alpha, result.out);
        } else {
          search_row(sums[i][h], rows[i][h], coord.y * BLOCK_N + column, p, result);
        }
      }
  }
}
