// The gradients of sparse attention by dense tiles of 64 columns: a block has 64 or 128 rows of Q and dO
// (for dQ, dbias) or of K and V (for dK, dV) and takes their tiles one after the other, by mma.sync. Adds no
// atomics. Limit: the instructions of a tile, however few nonzeros it has.
#include "gemm_core/parameters.cuh"
#include "sddmm/attention_tile.cuh"
#include "sddmm/dropout.cuh"
#include "sddmm/row_stats.cuh"

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
  // Whether nonzeros have numbers: for a bias, its gradient or dropout.
  static constexpr bool NUMBERED = SDDMM_NUMBERED;
  // The rows of a block, and the columns of a tile whose scores a warp holds at a time.
  static constexpr int ROWS = SDDMM_ROWS, SPAN = SDDMM_SPAN;
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
constexpr int ROWS = Config::ROWS, SPAN = Config::SPAN;
constexpr int WARPS = Config::THREADS / 32, WARP_ROWS = ROWS / WARPS;
constexpr int BLOCKS = WARP_ROWS / MMA_ROWS;  // of 16 rows of a warp
constexpr int KEY_EIGHTS = KEY_COLUMNS / 8, VALUE_EIGHTS = COLUMNS ? VALUE_COLUMNS / 8 : 0;
static_assert(BLOCKS * MMA_ROWS * WARPS == ROWS && WARP_ROWS <= 32, "warps share a block's rows");
static_assert(!COLUMNS || Config::THREADS >= 2 * SIDE, "a thread copies lse or delta of a column");
// The steps of 16 columns of the block's own rows of Q or K that warps hold as fragments, as far as
// registers go; they load the other steps again and again.
constexpr int HELD_STEPS = Config::NUMBERED || COLUMNS ? 0 : KEY_COLUMNS / 16;
using Tile = WarpTile<BLOCKS, SPAN / 8, ROWS, Config::BY_COLUMN>;

// Shared memory: the block's rows; two stages of those of a tile, and if COLUMNS of lse and delta
// of its columns; two stages of masks; then a flag.
constexpr int OWN_KEY_BYTES = ROWS * KeyRows::ROW_BYTES;
constexpr int OWN_BYTES = OWN_KEY_BYTES + ROWS * ValueRows::ROW_BYTES;
constexpr int KEY_BYTES = SIDE * KeyRows::ROW_BYTES;
constexpr int QUERIES_AT = KEY_BYTES + SIDE * ValueRows::ROW_BYTES;
constexpr int STAGE_BYTES = QUERIES_AT + (COLUMNS ? SIDE * 8 : 0);
constexpr int MASKS_AT = OWN_BYTES + 2 * STAGE_BYTES;
constexpr int FLAG_AT = MASKS_AT + TileMasks<ROWS>::BYTES;
static_assert(FLAG_AT + 4 <= Config::SHARED_BYTES, "all of it fits");

// The floats of a row that a block leaves for the launch that merges.
constexpr int PIECE = KEY_COLUMNS + (COLUMNS ? VALUE_COLUMNS : 0);

struct Arguments {
  // The rows that belong to the rows of tiles, and those that belong to their columns: of Q and K,
  // and of dO and V. COLUMNS exchanges them.
  const Element *own_key, *own_value, *key, *value;
  const Element* bias;             // (nnz,) or (heads, nnz); may be null
  const RowStats* stats;           // (heads, m)
  Element *key_grad, *value_grad;  // (heads, rows, d or dv), contiguous; may be null
  void* bias_grad;                 // (heads, nnz) elements, or (nnz,) floats; may be null
  const int* perm;                 // (nnz,), or null
  const int4* lines;               // of each tile the lines of its rows, see TileNumbers
  const int2* masks;               // of each tile the masks of its rows
  const TilePlace* tiles;
  const int4* parts;               // (first tile, last tile + 1, first row, slot or -1)
  const int4* shared_rows;         // (first row, first slot, number of slots, 0)
  float* pieces;                   // (heads, slots, ROWS, PIECE)
  const unsigned long long* seed;  // null without dropout
  i64 dropout_threshold;
  i64 head_own_key, head_own_value, head_key, head_value, head_bias;  // elements from head to head
  i64 pitch_own_key, pitch_own_value, pitch_key, pitch_value;         // elements from row to row
  int part_count, shared_count, slots;
  int nnz, row_count, other_count, query_count, d, dv;
  int first_head, heads;  // of this launch
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
    const RowStats stats = p.stats[in_heads];
    return {finite_base(stats.lse), stats.delta};
  }
  // Copies lse and delta of 64 rows of Q from `first` on; those that do not exist become zeros.
  __device__ __forceinline__ void copy_query(unsigned char* target, int first) const {
    const int i = static_cast<int>(threadIdx.x % SIDE);
    if (threadIdx.x >= 2 * SIDE) return;
    const bool is_delta = threadIdx.x >= SIDE, exists = first + i < p.query_count;
    const i64 row = static_cast<i64>(head) * p.query_count + (exists ? first + i : 0);
    ptx::cp_async_4(ptx::shared_address(target) + threadIdx.x * 4,
                    is_delta ? &p.stats[row].delta : &p.stats[row].lse, exists);
  }
  __device__ __forceinline__ int position(int nonzero) const {
    return p.perm == nullptr ? nonzero : p.perm[nonzero];
  }
  __device__ __forceinline__ float bias_of(int nonzero) const {
    return widened(p.bias[head * p.head_bias + position(nonzero)]);
  }
  __device__ __forceinline__ float kept_of(int nonzero) const {
    return dropout.factor(head, position(nonzero));
  }
  // The weight of a nonzero with this number, from its dot products of Q and K and of dO and V.
  __device__ __forceinline__ Weight weight(const Query& query, int nonzero, float score,
                                           float grad) const {
    const float bias = p.bias == nullptr ? 0.f : bias_of(nonzero);
    const float kept = dropout.seed == nullptr ? 1.f : kept_of(nonzero);
    const float weight = ptx::ex2((score * p.scale + (bias - query.base)) * LOG2_E);
    return {weight * kept, weight * (kept * grad - query.delta)};
  }
  __device__ __forceinline__ void store_bias_grad(int nonzero, float grad) const {
    const int at = position(nonzero);
    if (!p.sums_bias) {
      static_cast<Element*>(p.bias_grad)[static_cast<i64>(head) * p.nnz + at] =
          Narrow<Element>::from(grad);
    } else {
      float& sum = static_cast<float*>(p.bias_grad)[at];
      sum = head == 0 ? grad : sum + grad;
    }
  }
  // Stores the sum of a row of the part: column `column` of K's gradient or Q's, or, counted from
  // KEY_COLUMNS on, of V's. A part with a slot leaves a piece.
  __device__ __forceinline__ void store(int4 part, int row, int column, float sum) const {
    if (part.w >= 0) {
      p.pieces[((static_cast<i64>(head) * p.slots + part.w) * ROWS + row) * PIECE + column] = sum;
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
    const TileNumbers<Config::BY_COLUMN> numbers{p.lines + tile * ROWS};
    const int2 mask = p.masks[tile * ROWS + row];
#pragma unroll 1
    for (int c = 0; c < SIDE; ++c) {
      if ((static_cast<u32>(c < 32 ? mask.x : mask.y) >> c % 32 & 1) == 0) continue;
      const i64 other = p.tiles[tile].first_column + c;
      const Element* const key = h.key + other * p.pitch_key;
      const Element* const value = h.value + other * p.pitch_value;
      float score = 0.f, grad = 0.f;
      for (int i = lane; i < p.d; i += 32) score += widened(own_key[i]) * widened(key[i]);
      for (int i = lane; i < p.dv; i += 32) grad += widened(own_value[i]) * widened(value[i]);
      const Weight weight = h.weight(h.query(COLUMNS ? static_cast<int>(other) : part.z + row),
                                     numbers.of(row, c), warp_sum(score), warp_sum(grad));
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

// What the exponents and the gradients of this lane's rows of Q have in common, unless COLUMNS.
struct OwnQueries {
  float offset[BLOCKS][2], delta[BLOCKS][2];
};

// Turns the dot products of columns from `first` on into weights, as dropout leaves them, and
// gradients of scores: 0 where no nonzero is. queries: 64 lse and 64 delta of the tile's columns, if COLUMNS.
__device__ __forceinline__ void weigh(const Head& h, const Tile& tile, const OwnQueries& own,
                                      const float2* queries, int first, Tile::Products& scores,
                                      Tile::Products& grads) {
  const Arguments& p = h.p;
  const bool has_bias = Config::NUMBERED && p.bias != nullptr;
  const bool drops = Config::NUMBERED && h.dropout.seed != nullptr;
  float scale = p.scale * LOG2_E;
  if (has_bias) {
    each_element(scores, [&](int b, int j, int e) { scores[b][j][e] *= scale; });
    tile.each_nonzero(first, [&](int b, int j, int e, int nonzero) {
      scores[b][j][e] += h.bias_of(nonzero) * LOG2_E;
    });
    scale = 1.f;
  }
  u32 kept = 0xffffffff;  // a bit for each element
  static_assert(BLOCKS * SPAN / 2 <= 32, "a word has them all");
  if (drops) {
    tile.each_nonzero(first, [&](int b, int j, int e, int nonzero) {
      if (h.kept_of(nonzero) == 0.f) kept ^= 1u << ((b * (SPAN / 8) + j) * 4 + e);
    });
    each_element(grads, [&](int b, int j, int e) {
      grads[b][j][e] *= kept >> ((b * (SPAN / 8) + j) * 4 + e) & 1 ? p.kept : 0.f;
    });
  }
  // The lse, or the delta, of column pair j.
  auto of_pair = [&](int j, int which) {
    return queries[(which * SIDE + first + 8 * j) / 2 + threadIdx.x % 4];
  };
#pragma unroll
  for (int j = 0; j < SPAN / 8; ++j) {
    const float2 lse = COLUMNS ? of_pair(j, 0) : float2{};
    const float offset[2] = {lse.x * -LOG2_E, lse.y * -LOG2_E};
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        scores[b][j][e] =
            scores[b][j][e] * scale + (COLUMNS ? offset[e % 2] : own.offset[b][e / 2]);
  }
  if (!tile.is_full)
    tile.each(first, [&](int b, int j, int e, bool exists) {
      scores[b][j][e] = exists ? scores[b][j][e] : minus_infinity();
    });
#pragma unroll
  for (int j = 0; j < SPAN / 8; ++j) {
    const float2 delta = COLUMNS ? of_pair(j, 1) : float2{};
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float subtracted = COLUMNS ? (e % 2 ? delta.y : delta.x) : own.delta[b][e / 2];
        scores[b][j][e] = ptx::ex2(scores[b][j][e]);
        grads[b][j][e] = scores[b][j][e] * (grads[b][j][e] - subtracted);
      }
  }
  if (COLUMNS && drops)
    each_element(scores, [&](int b, int j, int e) {
      scores[b][j][e] *= kept >> ((b * (SPAN / 8) + j) * 4 + e) & 1 ? p.kept : 0.f;
    });
  if (!COLUMNS && Config::NUMBERED && p.bias_grad != nullptr)
    tile.each_nonzero(first, [&](int b, int j, int e, int nonzero) {
      h.store_bias_grad(nonzero, grads[b][j][e]);
    });
}

// 0, or NaN if a sum is not finite.
template <int EIGHTS>
__device__ __forceinline__ float zero_if_finite(const float (&sums)[BLOCKS][EIGHTS][4]) {
  float zero = 0.f;
  each_element(sums, [&](int b, int j, int e) { zero += 0.f * sums[b][j][e]; });
  return zero;
}

// Stores the sums of a warp's rows, from this column on.
template <int EIGHTS>
__device__ __forceinline__ void store_sums(const Head& h, int4 part, int warp_row, int first,
                                           const float (&sums)[BLOCKS][EIGHTS][4]) {
  each_element(sums, [&](int b, int j, int e) {
    const fragment::Position at = fragment::mma_c(threadIdx.x % 32, e);
    const int row = warp_row + MMA_ROWS * b + at.row;
    if (part.z + row < h.p.row_count)
      h.store(part, row, first + 8 * j + at.column, sums[b][j][e]);
  });
}

__device__ __forceinline__ void compute_part(const Arguments& p, unsigned char* shared) {
  // The longest parts of all heads come first.
  const int index = blockIdx.x / p.heads, head = p.first_head + blockIdx.x - index * p.heads;
  const int4 part = p.parts[index];
  const Head h(p, head);
  const int warp_row = static_cast<int>(static_cast<u32>(threadIdx.x) / 32 * WARP_ROWS);
  int& is_wrong = *reinterpret_cast<int*>(shared + FLAG_AT);
  if (threadIdx.x == 0) is_wrong = 0;

  const KeyRows keys_of{h.key, p.pitch_key, p.d};
  const ValueRows values_of{h.value, p.pitch_value, p.dv};
  const TileMasks<ROWS> masks{shared + MASKS_AT, p.tiles, p.masks};
  auto copy_tile = [&](int tile, TilePlace place, int stage) {
    unsigned char* const target = shared + OWN_BYTES + stage * STAGE_BYTES;
    keys_of.template copy<SIDE>(target, place.first_column, p.other_count);
    values_of.template copy<SIDE>(target + KEY_BYTES, place.first_column, p.other_count);
    if constexpr (COLUMNS) h.copy_query(target + QUERIES_AT, place.first_column);
    if (!place.all_full<ROWS>()) masks.copy(tile, stage);
    if (tile + 1 < part.y) masks.copy_place(tile + 1, stage ^ 1);
  };
  KeyRows{h.own_key, p.pitch_own_key, p.d}.template copy<ROWS>(shared, part.z, p.row_count);
  ValueRows{h.own_value, p.pitch_own_value, p.dv}.template copy<ROWS>(shared + OWN_KEY_BYTES, part.z,
                                                                     p.row_count);
  TilePlace place{0, 0};
  if (part.x < part.y) copy_tile(part.x, place = p.tiles[part.x], 0);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();

  OwnQueries own = {};
#pragma unroll
  for (int b = 0; b < BLOCKS && !COLUMNS; ++b)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_row + MMA_ROWS * b + fragment::mma_c(threadIdx.x % 32, 2 * r).row;
      const Query query = h.query(part.z + row);
      own.offset[b][r] = query.base * -LOG2_E, own.delta[b][r] = query.delta;
    }
  float key_sums[BLOCKS][KEY_EIGHTS][4] = {}, value_sums[BLOCKS][COLUMNS ? VALUE_EIGHTS : 1][4] = {};
  u32 held[BLOCKS][HELD_STEPS + 1][4];
#pragma unroll
  for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
    for (int step = 0; step < HELD_STEPS; ++step)
      load_fragment<KeyRows>(held[b][step], shared, warp_row + MMA_ROWS * b, step);
#pragma unroll 1
  for (int tile = part.x, stage = 0; tile < part.y; ++tile, stage ^= 1) {
    const TilePlace next = masks.place(stage ^ 1);
    if (tile + 1 < part.y) copy_tile(tile + 1, next, stage ^ 1);
    ptx::cp_async_commit();
    if (!place.is_empty(warp_row)) {
      const unsigned char* const keys = shared + OWN_BYTES + stage * STAGE_BYTES;
      const unsigned char* const values = keys + KEY_BYTES;
      const Tile own_tile{warp_row, place.is_full(warp_row), masks.of(stage) + warp_row,
                          p.lines + static_cast<i64>(tile) * ROWS};
#pragma unroll 1  // else the addresses of all columns take too many registers
      for (int first = 0; first < SIDE; first += SPAN) {
        Tile::Products scores = {}, grads = {};
        multiply_rows<Element, KeyRows>(scores, [&](u32(&a)[4], int b, int step) {
          if (step >= HELD_STEPS)
            return load_fragment<KeyRows>(a, shared, warp_row + MMA_ROWS * b, step);
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = held[b][step][i];
        }, keys, first);
        multiply_rows<Element, ValueRows>(grads, [&](u32(&a)[4], int b, int step) {
          load_fragment<ValueRows>(a, shared + OWN_KEY_BYTES, warp_row + MMA_ROWS * b, step);
        }, values, first);
        weigh(h, own_tile, own, reinterpret_cast<const float2*>(keys + QUERIES_AT), first, scores,
              grads);
        multiply_values<Element, KeyRows>(key_sums, grads, keys, first);
        if constexpr (COLUMNS) multiply_values<Element, ValueRows>(value_sums, scores, values, first);
      }
    }
    place = next;
    ptx::cp_async_wait<0>();
    __syncthreads();  // the next tile is there; and all have multiplied this one
  }

  // Finite sums have met no zero times what is not finite.
  if (zero_if_finite(key_sums) + zero_if_finite(value_sums) != 0.f) is_wrong = 1;
  __syncthreads();
  if (is_wrong) {
#pragma unroll 1
    for (int row = warp_row; row < warp_row + WARP_ROWS && part.z + row < p.row_count; ++row)
      exact_row(h, part, row);
    return;
  }
  store_sums(h, part, warp_row, 0, key_sums);
  if constexpr (COLUMNS) store_sums(h, part, warp_row, KEY_COLUMNS, value_sums);
}

// Adds the pieces of a block's rows, in the order of their slots: each thread those of one column, and
// a block as many neighbours as it has threads.
__device__ __forceinline__ void merge_parts(const Arguments& p) {
  constexpr int BLOCKS_PER_CUT = ROWS * PIECE / Config::THREADS;
  static_assert(BLOCKS_PER_CUT * Config::THREADS == ROWS * PIECE, "no thread is left over");
  const int of_head = p.shared_count * BLOCKS_PER_CUT, head = blockIdx.x / of_head;
  const int block = blockIdx.x - head * of_head;
  const int4 cut = p.shared_rows[block / BLOCKS_PER_CUT];
  const int i = block % BLOCKS_PER_CUT * Config::THREADS + static_cast<int>(threadIdx.x);
  if (cut.x + i / PIECE >= p.row_count) return;
  const float* const pieces =
      p.pieces + (static_cast<i64>(head) * p.slots + cut.y) * (ROWS * PIECE) + i;
  float sum = 0.f;
#pragma unroll 8
  for (int slot = 0; slot < cut.z; ++slot) sum += pieces[static_cast<i64>(slot) * (ROWS * PIECE)];
  Head(p, head).store(int4{0, 0, cut.x, -1}, i / PIECE, i % PIECE, sum);
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
