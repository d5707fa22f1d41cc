// Sparse attention by dense tiles of 64 x 64 positions: a block has 64 rows of Q and takes their tiles
// one after the other, by mma.sync and an online softmax. Adds a bit mask for each row of a tile; full
// tiles need none. Limit: the instructions of a tile, however few nonzeros it has.
#include "gemm_core/parameters.cuh"
#include "sddmm/attention_tile.cuh"
#include "sddmm/dropout.cuh"

using namespace sddmm;

// What attention_tile/host.py chooses, by macro.
struct Config {
  // The type of the operands and of the result: a half type.
  using Element = SDDMM_ELEMENT;
  // Whether this launch merges the sums of rows of tiles that several blocks have computed.
  static constexpr bool MERGES = SDDMM_MERGES;
  // The columns of Q and K, and of V, as they are padded with zeros.
  static constexpr int KEY_COLUMNS = SDDMM_KEY_COLUMNS, VALUE_COLUMNS = SDDMM_VALUE_COLUMNS;
  // Whether the lines of tiles are columns of the matrix.
  static constexpr bool BY_COLUMN = SDDMM_BY_COLUMN;
  // Whether all rows of Q, K and V start at multiples of 16 bytes.
  static constexpr bool ALIGNED = SDDMM_ALIGNED;
  // The number of threads of a block, and of blocks that the registers of a multiprocessor hold.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
  // The number of bytes of shared memory of a block.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Element = Config::Element;
constexpr int KEY_COLUMNS = Config::KEY_COLUMNS, VALUE_COLUMNS = Config::VALUE_COLUMNS;
using KeyRows = HalfRows<Element, KEY_COLUMNS, Config::THREADS, Config::ALIGNED>;
using ValueRows = HalfRows<Element, VALUE_COLUMNS, Config::THREADS, Config::ALIGNED>;
constexpr int BLOCKS = VALUE_COLUMNS / 8;  // of eight columns of V
static_assert(Config::THREADS == 32 * SIDE / WARP_ROWS, "each warp has 16 rows");

// Shared memory: the rows of Q, and two stages of tiles of K and of V; then a flag.
constexpr int STAGE_BYTES = KeyRows::BYTES + ValueRows::BYTES;
constexpr int FLAG_AT = KeyRows::BYTES + 2 * STAGE_BYTES;
static_assert(FLAG_AT + 4 <= Config::SHARED_BYTES, "all of it fits");

// The floats of a row that a block leaves for the launch that merges: its part of O, the largest
// score, and the sum of exponentials.
constexpr int PIECE = VALUE_COLUMNS + 2;

struct Arguments {
  const Element *q, *k, *v, *bias;  // bias: (nnz,) or (heads, nnz); may be null
  Element* out;                     // (heads, m, dv), contiguous
  float* lse;                       // (heads, m), contiguous
  const int* perm;                  // (nnz,), or null
  const int4* lines;                // of each tile its 64 lines: (first nonzero, mask, 0)
  const int2* tiles;                // of each tile the first column, and whether it is full
  const int4* parts;                // (first tile, last tile + 1, first row, slot or -1)
  const int4* shared_rows;          // (first row, first slot, number of slots, 0)
  float* pieces;                    // (heads, slots, 64, PIECE)
  const unsigned long long* seed;   // null without dropout
  i64 dropout_threshold;
  i64 head_q, head_k, head_v, head_bias;  // elements from head to head
  i64 pitch_q, pitch_k, pitch_v;          // elements from row to row
  int part_count, shared_count, slots;
  int m, n, d, dv;
  float scale;  // of scores in units of log(2)
  float kept;   // the factor of weights that dropout keeps
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// The attention of one head.
struct Head {
  const Arguments& p;
  const int head;
  const Element *q, *k, *v, *bias;
  const Dropout dropout;

  __device__ __forceinline__ Head(const Arguments& p, int head)
      : p(p),
        head(head),
        q(p.q + head * p.head_q),
        k(p.k + head * p.head_k),
        v(p.v + head * p.head_v),
        bias(p.bias == nullptr ? nullptr : p.bias + head * p.head_bias),
        dropout{p.seed, p.dropout_threshold, p.kept} {}

  __device__ __forceinline__ int position(int nonzero) const {
    return p.perm == nullptr ? nonzero : p.perm[nonzero];
  }
  __device__ __forceinline__ float bias_of(int nonzero) const {
    return bias == nullptr ? 0.f : widened(bias[position(nonzero)]) * LOG2_E;
  }
  __device__ __forceinline__ float kept_of(int nonzero) const {
    return dropout.seed == nullptr ? 1.f : dropout.factor(head, position(nonzero));
  }
  __device__ __forceinline__ float* piece(int slot, int row) const {
    return p.pieces + ((static_cast<i64>(head) * p.slots + slot) * SIDE + row) * PIECE;
  }
  __device__ __forceinline__ i64 row_of_result(int row) const {
    return static_cast<i64>(head) * p.m + row;
  }
};

// The sums of one row by a warp, nonzero by nonzero: a lane has every 32nd column of V.
constexpr int LANE_COLUMNS = (VALUE_COLUMNS + 31) / 32;
using RowSum = SoftmaxSum<1, LANE_COLUMNS>;

// Stores the sums of row `row` of the part: as the row of the result, or as a piece of it.
__device__ __forceinline__ void store_row(const Head& h, int4 part, int row, const RowSum& sum) {
  const int lane = threadIdx.x % 32;
  const float factor = part.w < 0 ? sum.normalizer() : 1.f;
#pragma unroll
  for (int i = 0; i < LANE_COLUMNS; ++i) {
    const int column = lane + 32 * i;
    if (column >= h.p.dv) continue;
    const float x = sum.out[0][i] * factor;
    if (part.w < 0) {
      h.p.out[h.row_of_result(part.z + row) * h.p.dv + column] = Narrow<Element>::from(x);
    } else {
      h.piece(part.w, row)[column] = x;
    }
  }
  if (lane != 0) return;
  if (part.w < 0) {
    h.p.lse[h.row_of_result(part.z + row)] = sum.log_sum();
  } else {
    h.piece(part.w, row)[VALUE_COLUMNS] = sum.largest;
    h.piece(part.w, row)[VALUE_COLUMNS + 1] = sum.sum;
  }
}

// The sums of one row without tensor cores: where operands are not finite, weights of 0 would make
// NaN of columns that the row has not.
__device__ inline RowSum exact_row(const Head& h, int4 part, int row) {
  const int lane = threadIdx.x % 32;
  const Arguments& p = h.p;
  const Element* const q = h.q + (part.z + row) * p.pitch_q;
  RowSum sum;
#pragma unroll 1
  for (i64 tile = part.x; tile < part.y; ++tile) {
    const TileNonzeros<Config::BY_COLUMN> nonzeros{p.lines + tile * SIDE};
#pragma unroll 1
    for (int c = 0; c < SIDE; ++c) {
      if (!nonzeros.exists(row, c)) continue;
      const int nonzero = nonzeros.number(row, c);
      const i64 col = p.tiles[tile].x + c;
      float score = 0.f;
      for (int i = lane; i < p.d; i += 32) score += widened(q[i]) * widened(h.k[col * p.pitch_k + i]);
      score = warp_sum(score) * p.scale + h.bias_of(nonzero);
      const float weight = ptx::ex2(score - sum.raise(score)), kept = h.kept_of(nonzero);
      sum.sum += weight;
#pragma unroll
      for (int i = 0; i < LANE_COLUMNS; ++i)
        if (lane + 32 * i < p.dv)
          sum.out[0][i] += weight * kept * widened(h.v[col * p.pitch_v + lane + 32 * i]);
    }
  }
  return sum;
}

// The sums of a lane's two rows of the warp.
struct LaneRows {
  float out[BLOCKS][4] = {};
  float largest[2] = {minus_infinity(), minus_infinity()};
  float sum[2] = {};  // over this lane's columns

  // Turns scores into weights relative to the largest score so far.
  __device__ __forceinline__ void weigh(Scores& scores) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float raised = largest[r];
#pragma unroll
      for (int j = 0; j < SIDE / 8; ++j)
        raised = fmaxf(raised, fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2)
        raised = fmaxf(raised, __shfl_xor_sync(FULL_MASK, raised, distance));
      const float base = finite_base(raised), factor = ptx::ex2(largest[r] - base);
      largest[r] = raised;
      sum[r] *= factor;
#pragma unroll
      for (int j = 0; j < BLOCKS; ++j) out[j][2 * r] *= factor, out[j][2 * r + 1] *= factor;
#pragma unroll
      for (int j = 0; j < SIDE / 8; ++j)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e)
          sum[r] += scores[j][e] = ptx::ex2(scores[j][e] - base);
    }
  }
};

// Masks the scores of positions without nonzeros, and adds the bias. The scale is that of scores.
__device__ __forceinline__ void mask(const Head& h, i64 tile, int warp_row, bool is_full,
                                     Scores& scores) {
  const TileNonzeros<Config::BY_COLUMN> nonzeros{h.p.lines + tile * SIDE};
#pragma unroll
  for (int j = 0; j < SIDE / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const fragment::Position at = fragment::mma_c(threadIdx.x % 32, e);
      const int row = warp_row + at.row, column = 8 * j + at.column;
      const bool exists = is_full || nonzeros.exists(row, column);
      float score = scores[j][e] * h.p.scale;
      if (h.bias != nullptr && exists) score += h.bias_of(nonzeros.number(row, column));
      scores[j][e] = exists ? score : minus_infinity();
    }
}

__device__ __forceinline__ void drop(const Head& h, i64 tile, int warp_row, Scores& weights) {
  const TileNonzeros<Config::BY_COLUMN> nonzeros{h.p.lines + tile * SIDE};
#pragma unroll
  for (int j = 0; j < SIDE / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const fragment::Position at = fragment::mma_c(threadIdx.x % 32, e);
      const int row = warp_row + at.row, column = 8 * j + at.column;
      if (nonzeros.exists(row, column)) weights[j][e] *= h.kept_of(nonzeros.number(row, column));
    }
}

// Stores a lane's two rows. Their sums are complete.
__device__ __forceinline__ void store_lane(const Head& h, int4 part, int warp_row,
                                           const LaneRows& rows) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const fragment::Position first = fragment::mma_c(threadIdx.x % 32, 2 * r);
    const int row = warp_row + first.row;
    if (part.z + row >= h.p.m) continue;
    RowSum own;
    own.largest = rows.largest[r], own.sum = rows.sum[r];
    const float factor = part.w < 0 ? own.normalizer() : 1.f;
#pragma unroll
    for (int j = 0; j < BLOCKS; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * j + first.column + e;
        if (column >= h.p.dv) continue;
        const float x = rows.out[j][2 * r + e] * factor;
        if (part.w < 0) {
          h.p.out[h.row_of_result(part.z + row) * h.p.dv + column] = Narrow<Element>::from(x);
        } else {
          h.piece(part.w, row)[column] = x;
        }
      }
    if (threadIdx.x % 4 != 0) continue;
    if (part.w < 0) {
      h.p.lse[h.row_of_result(part.z + row)] = own.log_sum();
    } else {
      h.piece(part.w, row)[VALUE_COLUMNS] = own.largest;
      h.piece(part.w, row)[VALUE_COLUMNS + 1] = own.sum;
    }
  }
}

__device__ __forceinline__ void compute_part(const Arguments& p, unsigned char* shared) {
  const int head = blockIdx.x / p.part_count;
  const int4 part = p.parts[blockIdx.x - head * p.part_count];
  const Head h(p, head);
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * WARP_ROWS;
  int& is_wrong = *reinterpret_cast<int*>(shared + FLAG_AT);
  if (threadIdx.x == 0) is_wrong = 0;

  auto copy_tile = [&](i64 tile, int stage) {
    const int first = p.tiles[tile].x;
    unsigned char* const target = shared + KeyRows::BYTES + stage * STAGE_BYTES;
    KeyRows::copy(target, h.k + first * p.pitch_k, p.pitch_k, p.n - first, p.d);
    ValueRows::copy(target + KeyRows::BYTES, h.v + first * p.pitch_v, p.pitch_v, p.n - first, p.dv);
  };
  KeyRows::copy(shared, h.q + part.z * p.pitch_q, p.pitch_q, p.m - part.z, p.d);
  if (part.x < part.y) copy_tile(part.x, 0);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();

  u32 q[KEY_COLUMNS / 16][4];
  const fragment::Position own = fragment::ldmatrix_a(threadIdx.x % 32);
#pragma unroll
  for (int step = 0; step < KEY_COLUMNS / 16; ++step)
    ptx::ldmatrix_x4(q[step], ptx::shared_address(shared) +
                                  KeyRows::Layout::offset(warp_row + own.row,
                                                          2 * step + own.column / 8));
  LaneRows rows;
#pragma unroll 1
  for (i64 tile = part.x; tile < part.y; ++tile) {
    const int stage = static_cast<int>(tile - part.x) % 2;
    if (tile + 1 < part.y) copy_tile(tile + 1, stage ^ 1);
    ptx::cp_async_commit();
    const unsigned char* const keys = shared + KeyRows::BYTES + stage * STAGE_BYTES;
    const bool is_full = p.tiles[tile].y != 0;
    Scores scores = {};
    multiply_keys<Element, KeyRows>(scores, q, keys);
    mask(h, tile, warp_row, is_full, scores);
    rows.weigh(scores);
    if (h.dropout.seed != nullptr) drop(h, tile, warp_row, scores);
    multiply_values<Element, ValueRows>(rows.out, scores, keys + KeyRows::BYTES);
    ptx::cp_async_wait<0>();
    __syncthreads();  // the next tile is there; and all have multiplied this one
  }

  float zero = 0.f;  // finite sums have met no zero times what is not finite
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2)
      rows.sum[r] += __shfl_xor_sync(FULL_MASK, rows.sum[r], distance);
    zero += 0.f * rows.sum[r];
  }
#pragma unroll
  for (int j = 0; j < BLOCKS; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) zero += 0.f * rows.out[j][e];
  if (zero != 0.f) is_wrong = 1;
  __syncthreads();
  if (!is_wrong) return store_lane(h, part, warp_row, rows);
#pragma unroll 1
  for (int row = warp_row; row < warp_row + WARP_ROWS && part.z + row < p.m; ++row)
    store_row(h, part, row, exact_row(h, part, row));
}

// Merges the pieces of 64 rows, each row by a warp.
__device__ __forceinline__ void merge_parts(const Arguments& p) {
  const int head = blockIdx.x / p.shared_count;
  const int4 cut = p.shared_rows[blockIdx.x - head * p.shared_count];
  const Head h(p, head);
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int row = warp; row < SIDE && cut.x + row < p.m; row += Config::THREADS / 32) {
    RowSum merged;
#pragma unroll 1
    for (int slot = cut.y; slot < cut.y + cut.z; ++slot) {
      const float* const piece = h.piece(slot, row);
      RowSum later;
#pragma unroll
      for (int i = 0; i < LANE_COLUMNS; ++i)
        if (lane + 32 * i < p.dv) later.out[0][i] = piece[lane + 32 * i];
      later.largest = piece[VALUE_COLUMNS], later.sum = piece[VALUE_COLUMNS + 1];
      merged.merge(later);
    }
    store_row(h, int4{0, 0, cut.x, -1}, row, merged);
  }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  if constexpr (Config::MERGES) {
    merge_parts(p);
  } else {
    extern __shared__ __align__(128) unsigned char shared[];
    compute_part(p, shared);
  }
}
