// Sparse attention by dense tiles of 64 x 64: a block has 64 rows of Q and takes their tiles one after
// the other, by an online softmax and by mma.sync or, floats, by CUDA cores. Adds a bit mask for each row
// of a tile; full tiles need none. Limit: the instructions of a tile, however few nonzeros it has.
#include "gemm_core/parameters.cuh"
#include "sddmm/attention_mma.cuh"
#include "sddmm/attention_simt.cuh"
#include "sddmm/dropout.cuh"

using namespace sddmm;

// What attention_tile/host.py chooses, by macro.
struct Config {
  // The type of the operands and of the result: a half type, or float.
  using Element = SDDMM_ELEMENT;
  // Whether this launch merges the sums of rows of tiles that several blocks have computed.
  static constexpr bool MERGES = SDDMM_MERGES;
  // The columns of Q and K, and of V, as they are padded with zeros.
  static constexpr int KEY_COLUMNS = SDDMM_KEY_COLUMNS, VALUE_COLUMNS = SDDMM_VALUE_COLUMNS;
  // Whether there is a bias or dropout, for which nonzeros have numbers.
  static constexpr bool NUMBERED = SDDMM_NUMBERED;
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
// What multiplies, and how a lane's elements and shared memory are laid out.
using Product = gemm_core::Select<sizeof(Element) == 2, MmaAttention<Config>,
                                  SimtAttention<Config>>::type;
using Rows = Product::Rows;
using Tile = Product::Tile;
using Lanes = Product::Lanes;
constexpr int VALUE_COLUMNS = Config::VALUE_COLUMNS;
constexpr int ROWS = SIDE, WARPS = Config::THREADS / 32, WARP_ROWS = ROWS / WARPS;
static_assert(Product::END_AT + 4 <= Config::SHARED_BYTES, "all of it and a flag fit");

// The floats of a row that a block leaves for the launch that merges: its part of O, the largest
// score, and the sum of exponentials.
constexpr int PIECE = VALUE_COLUMNS + 2;

struct Arguments {
  const Element *q, *k, *v, *bias;  // bias: (nnz,) or (heads, nnz); may be null
  Element* out;                     // (heads, m, dv), contiguous
  float* lse;                       // (heads, m), contiguous
  const int* perm;                  // (nnz,), or null
  const int4* lines;                // of each tile the lines of its rows, see TileNumbers
  const int2* masks;                // of each tile the masks of its rows
  const TilePlace* tiles;
  const int4* parts;                // (first tile, last tile + 1, first row, slot or -1)
  const int4* shared_rows;          // (first row, first slot, number of slots, 0)
  float* pieces;                    // (heads, slots, ROWS, PIECE)
  const unsigned long long* seed;   // null without dropout
  i64 dropout_threshold;
  i64 head_q, head_k, head_v, head_bias;  // elements from head to head
  i64 pitch_q, pitch_k, pitch_v;          // elements from row to row
  int heads, part_count, shared_count, slots;
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
        bias(!Config::NUMBERED || p.bias == nullptr ? nullptr : p.bias + head * p.head_bias),
        dropout{Config::NUMBERED ? p.seed : nullptr, p.dropout_threshold, p.kept} {}

  // Whether the scale is that of scores at the exponents, as it leaves the largest score the largest.
  __device__ __forceinline__ bool scales_exponents() const {
    return p.scale > 0.f && bias == nullptr;
  }
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
    return p.pieces + ((static_cast<i64>(head) * p.slots + slot) * ROWS + row) * PIECE;
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

// The sums of one row, nonzero by nonzero: where operands are not finite, weights of 0 would make
// NaN of columns that the row has not.
__device__ inline RowSum exact_row(const Head& h, int4 part, int row) {
  const int lane = threadIdx.x % 32;
  const Arguments& p = h.p;
  const Element* const q = h.q + (part.z + row) * p.pitch_q;
  RowSum sum;
#pragma unroll 1
  for (i64 tile = part.x; tile < part.y; ++tile) {
    const TileNumbers<Config::BY_COLUMN> numbers{p.lines + tile * ROWS};
    const int2 mask = p.masks[tile * ROWS + row];
#pragma unroll 1
    for (int c = 0; c < SIDE; ++c) {
      if ((static_cast<u32>(c < 32 ? mask.x : mask.y) >> c % 32 & 1) == 0) continue;
      const int nonzero = numbers.of(row, c);
      const i64 col = p.tiles[tile].first_column + c;
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

// Multiplies scores by the scale and adds the bias.
__device__ __forceinline__ void add_bias(const Head& h, const Tile& tile,
                                         Tile::Products& scores) {
  each_element(scores, [&](int b, int j, int e) { scores[b][j][e] *= h.p.scale; });
  if (h.bias == nullptr) return;
  tile.each_nonzero(0, [&](int b, int j, int e, int nonzero) {
    scores[b][j][e] += h.bias_of(nonzero);
  });
}

// Stores a lane's rows. Their sums are complete.
__device__ __forceinline__ void store_lane(const Head& h, int4 part, int warp_row,
                                           const Rows& rows) {
  using Pair = Numeric<Element>::Pair;
  const bool is_piece = part.w >= 0;
#pragma unroll
  for (int b = 0; b < Product::BLOCKS; ++b)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_row + Lanes::BLOCK_ROWS * b + Lanes::at(2 * r).row;
      if (part.z + row >= h.p.m) continue;
      RowSum own;
      own.largest = rows.base[b][r], own.sum = rows.sum[b][r];
      const float factor = is_piece ? 1.f : own.normalizer();
      float* const piece = is_piece ? h.piece(part.w, row) : nullptr;
      Element* const out = h.p.out + h.row_of_result(part.z + row) * h.p.dv;
#pragma unroll
      for (int j = 0; j < Product::VALUE_GROUPS; ++j) {
        const int column = Product::value_column(j);
        const float x = rows.out[b][j][2 * r], y = rows.out[b][j][2 * r + 1];
        if (is_piece) {
          *reinterpret_cast<float2*>(piece + column) = {x, y};
        } else if (h.p.dv % 2 == 0) {
          if (column < h.p.dv)
            *reinterpret_cast<Pair*>(out + column) = Numeric<Element>::pair(x * factor, y * factor);
        } else {
          if (column < h.p.dv) out[column] = Narrow<Element>::from(x * factor);
          if (column + 1 < h.p.dv) out[column + 1] = Narrow<Element>::from(y * factor);
        }
      }
      if ((threadIdx.x & Lanes::ROW_LANES) != 0) continue;
      if (is_piece) {
        piece[VALUE_COLUMNS] = own.largest, piece[VALUE_COLUMNS + 1] = own.sum;
      } else {
        h.p.lse[h.row_of_result(part.z + row)] = own.log_sum();
      }
    }
}

// Makes weights of a tile's scores.
__device__ __forceinline__ void weigh(const Head& h, const Tile& tile, Rows& rows,
                                      Tile::Products& scores) {
  const bool is_scaled = !h.scales_exponents();
  if (is_scaled) add_bias(h, tile, scores);
  if (!tile.is_full)
    tile.each(0, [&](int b, int j, int e, bool exists) {
      scores[b][j][e] = exists ? scores[b][j][e] : minus_infinity();
    });
  rows.weigh(scores, is_scaled ? 1.f : h.p.scale);
  if (h.dropout.seed != nullptr)
    tile.each_nonzero(0, [&](int b, int j, int e, int nonzero) {
      scores[b][j][e] *= h.kept_of(nonzero);
    });
}

__device__ __forceinline__ void compute_part(const Arguments& p, unsigned char* shared) {
  // The longest parts of all heads come first.
  const int index = blockIdx.x / p.heads, head = blockIdx.x - index * p.heads;
  const int4 part = p.parts[index];
  const Head h(p, head);
  const int warp_row = static_cast<int>(static_cast<u32>(threadIdx.x) / 32 * WARP_ROWS);
  int& is_wrong = *reinterpret_cast<int*>(shared + Product::END_AT);
  if (threadIdx.x == 0) is_wrong = 0;
  Rows rows;
  Product::run(rows, h, part, warp_row, shared,
               [&](const Tile& tile, Tile::Products& scores) { weigh(h, tile, rows, scores); });

  if (rows.finish() != 0.f) is_wrong = 1;
  __syncthreads();
  if (!is_wrong) return store_lane(h, part, warp_row, rows);
#pragma unroll 1
  for (int row = warp_row; row < warp_row + WARP_ROWS && part.z + row < p.m; ++row)
    store_row(h, part, row, exact_row(h, part, row));
}

// Merges the pieces of a row by a warp: each lane first has a slot's factor, then columns.
__device__ __forceinline__ RowSum merged_row(const Head& h, int first_slot, int count, int row) {
  const int lane = threadIdx.x % 32;
  RowSum merged;
  for (int slot = lane; slot < count; slot += 32)
    merged.largest = fmaxf(merged.largest, h.piece(first_slot + slot, row)[VALUE_COLUMNS]);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    merged.largest =
        fmaxf(merged.largest, __shfl_xor_sync(FULL_MASK, merged.largest, distance));
#pragma unroll 1
  for (int begin = 0; begin < count; begin += 32) {
    float factor = 0.f;
    if (begin + lane < count) {
      const float* const piece = h.piece(first_slot + begin + lane, row) + VALUE_COLUMNS;
      factor = ptx::ex2(piece[0] - finite_base(merged.largest));
      merged.sum += factor * piece[1];
    }
    const int end = count - begin < 32 ? count - begin : 32;
#pragma unroll 8
    for (int slot = 0; slot < end; ++slot) {
      const float* const piece = h.piece(first_slot + begin + slot, row);
      const float own = __shfl_sync(FULL_MASK, factor, slot);
#pragma unroll
      for (int i = 0; i < LANE_COLUMNS; ++i)
        if (lane + 32 * i < h.p.dv) merged.out[0][i] += own * piece[lane + 32 * i];
    }
  }
  merged.sum = warp_sum(merged.sum);
  return merged;
}

// Merges the pieces of a block's rows, of which each warp here has one.
__device__ __forceinline__ void merge_parts(const Arguments& p) {
  constexpr int BLOCKS_PER_CUT = ROWS / WARPS;
  const int of_head = p.shared_count * BLOCKS_PER_CUT, head = blockIdx.x / of_head;
  const int block = blockIdx.x - head * of_head;
  const int4 cut = p.shared_rows[block / BLOCKS_PER_CUT];
  const int row = block % BLOCKS_PER_CUT * WARPS + static_cast<int>(threadIdx.x) / 32;
  if (cut.x + row >= p.m) return;
  const Head h(p, head);
  store_row(h, int4{0, 0, cut.x, -1}, row, merged_row(h, cut.y, cut.z, row));
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
