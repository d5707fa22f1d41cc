// Sparse attention by gathering: each warp takes equally many nonzeros and rows, loads a row of K and
// a row of V per nonzero, and keeps the softmax of a row in registers until the row ends. Adds no
// scores in memory and no atomics: cut rows are merged in a fixed order. Limit: two rows, out of L2.
#include "gemm_core/parameters.cuh"
#include "sddmm/dropout.cuh"
#include "sddmm/row_part.cuh"
#include "sddmm/share_walk.cuh"
#include "sddmm/softmax_sum.cuh"

using namespace sddmm;

// What attention_gather/host.py chooses, by macro.
struct Config {
  // The type of the operands and of the result.
  using Element = SDDMM_ELEMENT;
  // Whether this launch merges the pieces of cut rows.
  static constexpr bool MERGES = SDDMM_MERGES;
  // The number of bytes of one load of Q, K and V, and of one store of the result; all rows start and
  // end at multiples of it.
  static constexpr int LOAD_BYTES = SDDMM_LOAD_BYTES, STORE_BYTES = SDDMM_STORE_BYTES;
  // The number of lanes that load a row, 16 bytes each at a time: a group; a power of two.
  static constexpr int LANES = SDDMM_LANES;
  // The number of times that they do so for a row of K, and for one of V.
  static constexpr int KEY_CHUNKS = SDDMM_KEY_CHUNKS, VALUE_CHUNKS = SDDMM_VALUE_CHUNKS;
  // Whether rows of K, and of V, end where the last lane's last load does.
  static constexpr bool KEY_NO_TAIL = SDDMM_KEY_NO_TAIL, VALUE_NO_TAIL = SDDMM_VALUE_NO_TAIL;
  // The number of nonzeros of a group whose loads are in flight together.
  static constexpr int BATCH = SDDMM_BATCH;
  // The number of threads of a block, and of blocks that the registers of a multiprocessor hold.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
  // The number of bytes of shared memory of a block.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Element = Config::Element;
constexpr int LANES = Config::LANES, ELEMENTS = CHUNK_ELEMENTS<Element>;
constexpr int KEY_CHUNKS = Config::KEY_CHUNKS, VALUE_CHUNKS = Config::VALUE_CHUNKS;
using Partial = SoftmaxSum<VALUE_CHUNKS, ELEMENTS>;
using Keys = RowParts<Element, LANES, KEY_CHUNKS, Config::LOAD_BYTES, Config::KEY_NO_TAIL>;
using Values = RowParts<Element, LANES, VALUE_CHUNKS, Config::LOAD_BYTES, Config::VALUE_NO_TAIL>;
static_assert(GroupPieces<Partial, LANES, Config::THREADS>::BYTES <= Config::SHARED_BYTES, "");

struct Arguments {
  const Element *q, *k, *v, *bias;  // bias: (nnz,) or (heads, nnz); may be null
  Element* out;                     // (heads, m, dv), contiguous
  float* lse;                       // (heads, m), contiguous
  const int *rows, *cols, *perm;    // (nnz,), sorted by row; perm may be null
  const RowShare* shares;           // (shares,)
  const int2* slots;                // (shares,), see walk_share; null if no row is cut
  const CutRow* cut_rows;           // (cut_rows,)
  float* pieces;                    // (heads, pieces, Partial::COUNT, LANES)
  const unsigned long long* seed;   // null without dropout
  i64 dropout_threshold;
  i64 head_q, head_k, head_v, head_bias;    // elements from head to head
  int pitch_q, pitch_k, pitch_v;            // bytes from row to row
  int shares_per_head, cut_rows_per_head, pieces_per_head;
  int m, d, dv, heads;
  float scale;  // of scores in units of log(2)
  float kept;   // the factor of weights that dropout keeps
};
GEMM_CORE_CHECK_STRUCT(Arguments)

struct Extra {
  float bias, kept;
};

// The attention of one head.
struct Forward {
  static constexpr int LANES = ::LANES, BATCH = Config::BATCH, THREADS = Config::THREADS;
  using Partial = ::Partial;
  using Extra = ::Extra;

  const Keys q, k;
  const Values v;
  Element* const out;
  float* const lse;
  const Element* const bias;
  const Dropout dropout;
  const float scale;
  const int head, dv;
  float own[KEY_CHUNKS][ELEMENTS] = {};  // the row of Q that was last used by a whole batch
  int own_row = -1;

  __device__ __forceinline__ Forward(const Arguments& p, int head)
      : q(p.q + head * p.head_q, p.pitch_q, p.d),
        k(p.k + head * p.head_k, p.pitch_k, p.d),
        v(p.v + head * p.head_v, p.pitch_v, p.dv),
        out(p.out + static_cast<i64>(head) * p.m * p.dv),
        lse(p.lse + static_cast<i64>(head) * p.m),
        bias(p.bias == nullptr ? nullptr : p.bias + head * p.head_bias),
        dropout{p.seed, p.dropout_threshold, p.kept},
        scale(p.scale),
        head(head),
        dv(p.dv) {}

  __device__ __forceinline__ Extra load_extra(const NonzeroIndex& index) const {
    if (index.row < 0) return {0.f, 0.f};
    return {bias == nullptr ? 0.f : widened(bias[index.position]) * LOG2_E,
            dropout.factor(head, index.position)};
  }

  template <class ChangeRow>
  __device__ __forceinline__ void add(const NonzeroIndex& index, const Extra& extra, int batch,
                                      bool alike, Partial& partial, int& row,
                                      const ChangeRow& change_row) {
    const int first_lane = static_cast<int>(threadIdx.x) % 32 / LANES * LANES + batch;
    if (alike && own_row != row) {
      widen<Element>(q.load(row), own);
      own_row = row;
    }
    Keys::Part keys[BATCH];
    Values::Part values[BATCH];
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      const int col = __shfl_sync(FULL_MASK, index.col, first_lane + j);
      keys[j] = k.load(col);
      values[j] = v.load(col);
    }
    float scores[BATCH], kept[BATCH];
    int rows[BATCH];
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      if (alike) {
        scores[j] = dot<Element>(keys[j], own);
      } else {
        rows[j] = __shfl_sync(FULL_MASK, index.row, first_lane + j);
        float own_of_j[KEY_CHUNKS][ELEMENTS];
        widen<Element>(q.load(rows[j] < 0 ? 0 : rows[j]), own_of_j);
        scores[j] = dot<Element>(keys[j], own_of_j);
      }
    }
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      scores[j] = group_sum<LANES>(scores[j]) * scale;
      if (bias != nullptr) scores[j] += __shfl_sync(FULL_MASK, extra.bias, first_lane + j);
      kept[j] = 1.f;
      if (dropout.seed != nullptr) kept[j] = __shfl_sync(FULL_MASK, extra.kept, first_lane + j);
    }
    auto add_one = [&](int j, float base) {
      const float weight = gemm_core::ptx::ex2(scores[j] - base);
      partial.sum += weight;
      add_part<Element>(partial.out, values[j], weight * kept[j]);
    };
    if (alike) {
      float largest = scores[0];
#pragma unroll
      for (int j = 1; j < BATCH; ++j) largest = fmaxf(largest, scores[j]);
      const float base = partial.raise(largest);
#pragma unroll
      for (int j = 0; j < BATCH; ++j) add_one(j, base);
    } else {
#pragma unroll
      for (int j = 0; j < BATCH; ++j) {
        if (rows[j] < 0) continue;
        if (rows[j] != row) change_row(rows[j]);
        add_one(j, partial.raise(scores[j]));
      }
    }
  }

  __device__ __forceinline__ void store(int row, const Partial& partial) const {
    store_row<LANES, VALUE_CHUNKS, Config::STORE_BYTES>(out + static_cast<i64>(row) * dv, dv,
                                                        partial.out, partial.normalizer());
    if (static_cast<int>(threadIdx.x) % LANES == 0) lse[row] = partial.log_sum();
  }
};

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  float* const floats = reinterpret_cast<float*>(shared);
  if constexpr (Config::MERGES) {
    const int head = blockIdx.x / p.cut_rows_per_head;
    const CutRow cut = p.cut_rows[blockIdx.x - head * p.cut_rows_per_head];
    const WarpPieces<Partial, LANES> pieces{p.pieces};
    const i64 first = static_cast<i64>(head) * p.pieces_per_head + cut.first;
    const Partial merged =
        merge_pieces<Partial, LANES, Config::THREADS>(pieces, first, cut.count, floats);
    if (threadIdx.x < LANES) Forward(p, head).store(cut.row, merged);
  } else {
    constexpr int WARPS = Config::THREADS / 32;
    const int blocks = (p.shares_per_head + WARPS - 1) / WARPS, head = blockIdx.x / blocks;
    const int share = (blockIdx.x - head * blocks) * WARPS + threadIdx.x / 32;
    if (share >= p.shares_per_head) return;
    Forward forward(p, head);
    const i64 head_pieces = static_cast<i64>(head) * p.pieces_per_head;
    walk_share(forward, SharedNonzeros{p.rows, p.cols, p.perm, p.shares, p.slots}, share, floats,
               WarpPieces<Partial, LANES>{p.pieces + head_pieces * (Partial::COUNT * LANES)});
  }
}
