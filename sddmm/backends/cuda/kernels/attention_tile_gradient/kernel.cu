// The gradients of sparse attention by dense tiles of 64 x 64 positions: a block has 64 rows of Q and dO
// (for dQ, dbias) or of K and V (for dK, dV) and takes their tiles one after the other, by mma.sync. Adds
// no atomics. Limit: the instructions of a tile, however few nonzeros it has.
#include "gemm_core/parameters.cuh"
#include "sddmm/attention_tile.cuh"
#include "sddmm/dropout.cuh"

using namespace sddmm;

// What attention_tile_gradient/host.py chooses, by macro.
struct Config {
  // The type of the operands and of the gradients: a half type.
  using Element = SDDMM_ELEMENT;
  // Whether columns are summed: the "rows" of tiles are then the columns of the matrix.
  static constexpr bool COLUMNS = SDDMM_COLUMNS;
  // Whether this launch merges the sums of rows of tiles that several blocks have computed.
  static constexpr bool MERGES = SDDMM_MERGES;
  // The columns of Q and K, and of V and dO, as they are padded with zeros.
  static constexpr int KEY_COLUMNS = SDDMM_KEY_COLUMNS, VALUE_COLUMNS = SDDMM_VALUE_COLUMNS;
  // Whether the lines of tiles are their columns.
  static constexpr bool BY_COLUMN = SDDMM_BY_COLUMN;
  // Whether all rows of operands start at multiples of 16 bytes.
  static constexpr bool ALIGNED = SDDMM_ALIGNED;
  // The number of threads of a block, and of blocks that the registers of a multiprocessor hold.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
  // The number of bytes of shared memory of a block.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Element = Config::Element;
constexpr bool COLUMNS = Config::COLUMNS;
constexpr int KEY_COLUMNS = Config::KEY_COLUMNS, VALUE_COLUMNS = Config::VALUE_COLUMNS;
using KeyRows = HalfRows<Element, KEY_COLUMNS, Config::THREADS, Config::ALIGNED>;
using ValueRows = HalfRows<Element, VALUE_COLUMNS, Config::THREADS, Config::ALIGNED>;
static_assert(Config::THREADS == 32 * SIDE / WARP_ROWS, "each warp has 16 rows");

// Shared memory: the block's rows, and two stages of those of a tile; then a flag.
constexpr int STAGE_BYTES = KeyRows::BYTES + ValueRows::BYTES, FLAG_AT = 3 * STAGE_BYTES;
static_assert(FLAG_AT + 4 <= Config::SHARED_BYTES, "all of it fits");

// The floats of a row that a block leaves for the launch that merges.
constexpr int PIECE = KEY_COLUMNS + (COLUMNS ? VALUE_COLUMNS : 0);

struct Arguments {
  // The rows that belong to the rows of tiles, and those that belong to their columns: of Q and K,
  // and of dO and V. COLUMNS exchanges them.
  const Element *own_key, *own_value, *key, *value;
  const Element* bias;             // (nnz,) or (heads, nnz); may be null
  const float *lse, *delta;        // (heads, m): log(sum of exponentials), and sum of dO * O
  Element *key_grad, *value_grad;  // (heads, rows, d or dv), contiguous; may be null
  void* bias_grad;                 // (heads, nnz) elements, or (nnz,) floats; may be null
  const int* perm;                 // (nnz,), or null
  const int4* lines;               // of each tile its 64 lines: (first nonzero, mask, 0)
  const int2* tiles;               // of each tile the first column, and whether it is full
  const int4* parts;               // (first tile, last tile + 1, first row, slot or -1)
  const int4* shared_rows;         // (first row, first slot, number of slots, 0)
  float* pieces;                   // (heads, slots, 64, PIECE)
  const unsigned long long* seed;  // null without dropout
  i64 dropout_threshold;
  i64 head_own_key, head_own_value, head_key, head_value, head_bias;  // elements from head to head
  i64 pitch_own_key, pitch_own_value, pitch_key, pitch_value;         // elements from row to row
  int part_count, shared_count, slots;
  int nnz, row_count, other_count, query_count, d, dv;
  int first_head;  // of this launch
  int sums_bias;   // see attention_gradient
  float scale;     // of dot products
  float kept;      // the factor of weights that dropout keeps
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// One nonzero's weight, as dropout leaves it, and the gradient of its score.
struct Weight {
  float dropped, grad;
};

// What all nonzeros of a row of Q share.
struct Query {
  float base, delta;  // the logarithm of the sum of exponentials, or 0 if that is -inf
};

// The gradients of one head.
struct Head {
  const Arguments& p;
  const int head;
  const Element *own_key, *own_value, *key, *value;
  const Dropout dropout;

  __device__ __forceinline__ Head(const Arguments& p, int head)
      : p(p),
        head(head),
        own_key(p.own_key + head * p.head_own_key),
        own_value(p.own_value + head * p.head_own_value),
        key(p.key + head * p.head_key),
        value(p.value + head * p.head_value),
        dropout{p.seed, p.dropout_threshold, p.kept} {}

  __device__ __forceinline__ Query query(int row) const {
    if (row >= p.query_count) return {0.f, 0.f};
    const i64 in_heads = static_cast<i64>(head) * p.query_count + row;
    return {finite_base(p.lse[in_heads]), p.delta[in_heads]};
  }
  // The weight of a nonzero with this number, from its dot products of Q and K and of dO and V.
  __device__ __forceinline__ Weight weight(const Query& query, int nonzero, float score,
                                           float grad) const {
    float offset = -query.base, kept = 1.f;
    if (p.bias != nullptr || dropout.seed != nullptr) {
      const int position = p.perm == nullptr ? nonzero : p.perm[nonzero];
      if (p.bias != nullptr) offset += widened(p.bias[head * p.head_bias + position]);
      kept = dropout.factor(head, position);
    }
    const float weight = ptx::ex2((score * p.scale + offset) * LOG2_E);
    return {weight * kept, weight * (kept * grad - query.delta)};
  }
  __device__ __forceinline__ void store_bias_grad(int nonzero, float grad) const {
    const int position = p.perm == nullptr ? nonzero : p.perm[nonzero];
    if (!p.sums_bias) {
      static_cast<Element*>(p.bias_grad)[static_cast<i64>(head) * p.nnz + position] =
          Narrow<Element>::from(grad);
    } else {
      float& sum = static_cast<float*>(p.bias_grad)[position];
      sum = head == 0 ? grad : sum + grad;
    }
  }
  // Stores the sum of a row of the part: column `column` of K's gradient or Q's, or, counted from
  // KEY_COLUMNS on, of V's. A part with a slot leaves a piece.
  __device__ __forceinline__ void store(int4 part, int row, int column, float sum) const {
    if (part.w >= 0) {
      p.pieces[((static_cast<i64>(head) * p.slots + part.w) * SIDE + row) * PIECE + column] = sum;
      return;
    }
    const i64 in_heads = static_cast<i64>(head) * p.row_count + part.z + row;
    if (column < KEY_COLUMNS) {
      if (column < p.d && p.key_grad != nullptr)
        p.key_grad[in_heads * p.d + column] = Narrow<Element>::from(sum * p.scale);
    } else if (column - KEY_COLUMNS < p.dv && p.value_grad != nullptr) {
      p.value_grad[in_heads * p.dv + column - KEY_COLUMNS] = Narrow<Element>::from(sum);
    }
  }
};

// Computes one row without tensor cores, by a warp: where operands are not finite, weights of 0 would
// make NaN of columns that the row has not; and a half type may not hold the gradient of a score.
__device__ inline void exact_row(const Head& h, int4 part, int row) {
  const Arguments& p = h.p;
  const int lane = threadIdx.x % 32;
  constexpr int LANE_COLUMNS = (PIECE + 31) / 32;
  float sums[LANE_COLUMNS] = {};
  const Element* const own_key = h.own_key + (part.z + row) * p.pitch_own_key;
  const Element* const own_value = h.own_value + (part.z + row) * p.pitch_own_value;
#pragma unroll 1
  for (i64 tile = part.x; tile < part.y; ++tile) {
    const TileNonzeros<Config::BY_COLUMN> nonzeros{p.lines + tile * SIDE};
#pragma unroll 1
    for (int c = 0; c < SIDE; ++c) {
      if (!nonzeros.exists(row, c)) continue;
      const int other = p.tiles[tile].x + c;
      const Element* const key = h.key + other * p.pitch_key;
      const Element* const value = h.value + other * p.pitch_value;
      float score = 0.f, grad = 0.f;
      for (int i = lane; i < p.d; i += 32) score += widened(own_key[i]) * widened(key[i]);
      for (int i = lane; i < p.dv; i += 32) grad += widened(own_value[i]) * widened(value[i]);
      const Weight weight = h.weight(h.query(COLUMNS ? other : part.z + row),
                                     nonzeros.number(row, c), warp_sum(score), warp_sum(grad));
#pragma unroll
      for (int i = 0; i < LANE_COLUMNS; ++i) {
        const int column = lane + 32 * i;
        if (column < p.d) sums[i] += weight.grad * widened(key[column]);
        if (COLUMNS && column >= KEY_COLUMNS && column - KEY_COLUMNS < p.dv)
          sums[i] += weight.dropped * widened(value[column - KEY_COLUMNS]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < LANE_COLUMNS; ++i)
    if (lane + 32 * i < PIECE) h.store(part, row, lane + 32 * i, sums[i]);
}

// Turns the dot products of a tile into weights and gradients of scores: 0 where no nonzero is. own:
// this lane's two rows of Q, unless COLUMNS.
__device__ __forceinline__ void weigh(const Head& h, i64 tile, int warp_row, const Query (&own)[2],
                                      Scores& scores, Scores& grads) {
  const Arguments& p = h.p;
  const TileNonzeros<Config::BY_COLUMN> nonzeros{p.lines + tile * SIDE};
  const int2 place = p.tiles[tile];
#pragma unroll
  for (int j = 0; j < SIDE / 8; ++j) {
    const int first = place.x + 8 * j + fragment::mma_c(threadIdx.x % 32, 0).column;
    const Query of_columns[2] = {COLUMNS ? h.query(first) : own[0],
                                 COLUMNS ? h.query(first + 1) : own[0]};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const fragment::Position at = fragment::mma_c(threadIdx.x % 32, e);
      const int row = warp_row + at.row, column = 8 * j + at.column;
      Weight weight{0.f, 0.f};
      if (place.y != 0 || nonzeros.exists(row, column)) {
        const Query& query = COLUMNS ? of_columns[e % 2] : own[e / 2];
        const bool numbered = p.bias != nullptr || h.dropout.seed != nullptr;
        const int nonzero = numbered ? nonzeros.number(row, column) : 0;
        weight = h.weight(query, nonzero, scores[j][e], grads[j][e]);
        if (!COLUMNS && p.bias_grad != nullptr) h.store_bias_grad(nonzero, weight.grad);
      }
      scores[j][e] = weight.dropped, grads[j][e] = weight.grad;
    }
  }
}

template <int BLOCKS>
__device__ __forceinline__ float zero_if_finite(const float (&sums)[BLOCKS][4]) {
  float zero = 0.f;
#pragma unroll
  for (int j = 0; j < BLOCKS; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) zero += 0.f * sums[j][e];
  return zero;
}

// Stores the sums of a warp's rows, from this column on.
template <int BLOCKS>
__device__ __forceinline__ void store_sums(const Head& h, int4 part, int warp_row, int first,
                                           const float (&sums)[BLOCKS][4]) {
#pragma unroll
  for (int j = 0; j < BLOCKS; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const fragment::Position at = fragment::mma_c(threadIdx.x % 32, e);
      if (part.z + warp_row + at.row < h.p.row_count)
        h.store(part, warp_row + at.row, first + 8 * j + at.column, sums[j][e]);
    }
}

__device__ __forceinline__ void compute_part(const Arguments& p, unsigned char* shared) {
  const int in_launch = blockIdx.x / p.part_count;
  const int4 part = p.parts[blockIdx.x - in_launch * p.part_count];
  const Head h(p, p.first_head + in_launch);
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * WARP_ROWS;
  int& is_wrong = *reinterpret_cast<int*>(shared + FLAG_AT);
  if (threadIdx.x == 0) is_wrong = 0;

  auto copy_tile = [&](i64 tile, int stage) {
    const int first = p.tiles[tile].x, left = p.other_count - first;
    unsigned char* const target = shared + (1 + stage) * STAGE_BYTES;
    KeyRows::copy(target, h.key + first * p.pitch_key, p.pitch_key, left, p.d);
    ValueRows::copy(target + KeyRows::BYTES, h.value + first * p.pitch_value, p.pitch_value, left,
                    p.dv);
  };
  const int rows = p.row_count - part.z;
  KeyRows::copy(shared, h.own_key + part.z * p.pitch_own_key, p.pitch_own_key, rows, p.d);
  ValueRows::copy(shared + KeyRows::BYTES, h.own_value + part.z * p.pitch_own_value,
                  p.pitch_own_value, rows, p.dv);
  if (part.x < part.y) copy_tile(part.x, 0);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();

  Query own[2] = {};
#pragma unroll
  for (int r = 0; r < 2 && !COLUMNS; ++r)
    own[r] = h.query(part.z + warp_row + fragment::mma_c(threadIdx.x % 32, 2 * r).row);
  float key_sums[KEY_COLUMNS / 8][4] = {}, value_sums[COLUMNS ? VALUE_COLUMNS / 8 : 1][4] = {};
#pragma unroll 1
  for (i64 tile = part.x; tile < part.y; ++tile) {
    const int stage = static_cast<int>(tile - part.x) % 2;
    if (tile + 1 < part.y) copy_tile(tile + 1, stage ^ 1);
    ptx::cp_async_commit();
    const unsigned char* const keys = shared + (1 + stage) * STAGE_BYTES;
    const unsigned char* const values = keys + KeyRows::BYTES;
    Scores scores = {}, grads = {};
    multiply_rows<Element, KeyRows>(scores, shared, warp_row, keys);
    multiply_rows<Element, ValueRows>(grads, shared + KeyRows::BYTES, warp_row, values);
    weigh(h, tile, warp_row, own, scores, grads);
    multiply_values<Element, KeyRows>(key_sums, grads, keys);
    if constexpr (COLUMNS) multiply_values<Element, ValueRows>(value_sums, scores, values);
    ptx::cp_async_wait<0>();
    __syncthreads();  // the next tile is there; and all have multiplied this one
  }

  // Finite sums have met no zero times what is not finite.
  if (zero_if_finite(key_sums) + zero_if_finite(value_sums) != 0.f) is_wrong = 1;
  __syncthreads();
  if (is_wrong) {
#pragma unroll 1
    for (int row = warp_row; row < warp_row + WARP_ROWS && row < rows; ++row)
      exact_row(h, part, row);
    return;
  }
  store_sums(h, part, warp_row, 0, key_sums);
  if constexpr (COLUMNS) store_sums(h, part, warp_row, KEY_COLUMNS, value_sums);
}

// Adds the pieces of 64 rows, in the order of their slots.
__device__ __forceinline__ void merge_parts(const Arguments& p) {
  const int head = blockIdx.x / p.shared_count;
  const int4 cut = p.shared_rows[blockIdx.x - head * p.shared_count];
  const Head h(p, head);
  const float* const pieces =
      p.pieces + (static_cast<i64>(head) * p.slots + cut.y) * (SIDE * PIECE);
  for (int i = static_cast<int>(threadIdx.x); i < SIDE * PIECE; i += Config::THREADS) {
    if (cut.x + i / PIECE >= p.row_count) break;
    float sum = 0.f;
#pragma unroll 4
    for (int slot = 0; slot < cut.z; ++slot) sum += pieces[slot * (SIDE * PIECE) + i];
    h.store(int4{0, 0, cut.x, -1}, i / PIECE, i % PIECE, sum);
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
