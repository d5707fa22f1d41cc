// Sparse attention by gathering: each warp takes equally many nonzeros and rows, loads rows of K and V
// per nonzero, or of V where scores are in memory, and keeps the softmax of a row in registers until it
// ends. Adds no atomics: cut rows are merged in a fixed order. Limit: a nonzero's rows, out of L2.
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
  // Whether scores are in memory, computed by another kernel; else from rows of Q and K.
  static constexpr bool HAS_SCORES = SDDMM_HAS_SCORES;
  // The number of bytes of one load of Q, K and V, and of one store of the result; all rows start and
  // end at multiples of it.
  static constexpr int LOAD_BYTES = SDDMM_LOAD_BYTES, STORE_BYTES = SDDMM_STORE_BYTES;
  // The number of lanes that load a row, 16 bytes each at a time: a group; a power of two.
  static constexpr int LANES = SDDMM_LANES;
  // The number of times that they do so for a row of K, and for one of V.
  static constexpr int KEY_CHUNKS = SDDMM_KEY_CHUNKS, VALUE_CHUNKS = SDDMM_VALUE_CHUNKS;
  // Whether rows of K, and of V, end where the last lane's last load does.
  static constexpr bool KEY_NO_TAIL = SDDMM_KEY_NO_TAIL, VALUE_NO_TAIL = SDDMM_VALUE_NO_TAIL;
  // Whether the last rows of K and V stand elsewhere.
  static constexpr bool HAS_BEYOND = SDDMM_HAS_BEYOND;
  // Whether scores have a bias, or weights are dropped.
  static constexpr bool BIAS_OR_DROPOUT = SDDMM_BIAS_OR_DROPOUT;
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
using Queries = RowParts<Element, LANES, KEY_CHUNKS, Config::LOAD_BYTES, Config::KEY_NO_TAIL>;
using Keys = RowParts<Element, LANES, KEY_CHUNKS, Config::LOAD_BYTES, Config::KEY_NO_TAIL,
                      Config::HAS_BEYOND>;
using Values = RowParts<Element, LANES, VALUE_CHUNKS, Config::LOAD_BYTES, Config::VALUE_NO_TAIL,
                        Config::HAS_BEYOND>;

struct Arguments {
  const Element *q, *k, *v, *bias;  // bias: (nnz,) or (heads, nnz); may be null
  const float* scores;              // (heads, nonzeros of this launch), by row, where HAS_SCORES
  Element* out;                     // (heads, m, dv), contiguous
  float* lse;                       // (heads, m), contiguous
  const int *rows, *cols, *perm;    // (nnz,), sorted by row; perm may be null
  const RowShare* shares;           // (shares,)
  const int2* slots;                // (shares,), see walk_share; read where rows are cut
  const CutRow* cut_rows;           // (cut_rows,)
  float* pieces;                    // (heads, pieces, Partial::COUNT, LANES)
  const unsigned long long* seed;   // null without dropout
  i64 dropout_threshold;
  i64 head_q, head_k, head_v, head_bias, head_scores;  // elements from head to head
  i64 shift_k, shift_v;                     // see RowsBeyond
  int pitch_q, pitch_k, pitch_v;            // bytes from row to row
  int beyond_pitch_k, beyond_pitch_v, first_beyond;
  int shares_per_head, cut_rows_per_head, pieces_per_head;
  int m, d, dv, heads;
  int first_head;   // the number of this launch's first head, to which all addresses belong
  int first_score;  // the nonzero to which the first of `scores` belongs
  float scale;  // of scores in units of log(2)
  float kept;   // the factor of weights that dropout keeps
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// The attention of one head.
struct Forward {
  static constexpr int LANES = ::LANES, BATCH = Config::BATCH;
  static constexpr int THREADS = Config::THREADS, SHARED_BYTES = Config::SHARED_BYTES;
  using Partial = ::Partial;
  // The rows of a batch, with the score of the lane's own nonzero, if it is in memory, its bias, and
  // the factor by which dropout keeps it.
  struct Loads {
    Keys::Part keys[BATCH];
    Values::Part values[BATCH];
    float score, bias, kept;
  };

  const Queries q;
  Keys k;
  Values v;
  const Arguments& p;
  const Element* const bias;
  const float* const scores;
  const Dropout dropout;
  const float scale;
  const int head;
  const i64 first_row;  // of the head, among the rows of all heads
  Keys::Part own{};  // the row of Q

  __device__ __forceinline__ Forward(const Arguments& p, int head)
      : q(p.q, head * p.head_q, p.pitch_q, p.d, false),
        k(p.k, head * p.head_k, p.pitch_k, p.d),
        v(p.v, head * p.head_v, p.pitch_v, p.dv),
        p(p),
        bias(p.bias == nullptr ? nullptr : p.bias + head * p.head_bias),
        scores(p.scores + head * p.head_scores),
        dropout{p.seed, p.dropout_threshold, p.kept},
        scale(p.scale),
        head(head),
        first_row(static_cast<i64>(head) * p.m) {
    if constexpr (Config::HAS_BEYOND) {
      k.beyond = {p.shift_k, p.beyond_pitch_k, p.first_beyond};
      v.beyond = {p.shift_v, p.beyond_pitch_v, p.first_beyond};
    }
  }

  __device__ __forceinline__ void begin_row(int row) {
    if constexpr (!Config::HAS_SCORES) own = q.template load<true>(row);
  }

  __device__ __forceinline__ Loads load(const RowBatch<LANES>& batch) const {
    Loads loads;
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      const int col = __shfl_sync(FULL_MASK, batch.own.col, batch.lane_of(j));
      if constexpr (!Config::HAS_SCORES) loads.keys[j] = k.load_if(j < batch.size, col);
      loads.values[j] = v.load_if(j < batch.size, col);
    }
    if constexpr (Config::HAS_SCORES)
      loads.score = batch.has_own ? scores[batch.own.number - p.first_score] : 0.f;
    if constexpr (Config::BIAS_OR_DROPOUT) {
      loads.bias = 0.f, loads.kept = 1.f;
      if (batch.has_own) {
        if (bias != nullptr) loads.bias = widened(bias[batch.own.position]) * LOG2_E;
        loads.kept = dropout.factor(p.first_head + head, batch.own.position);
      }
    }
    return loads;
  }

  __device__ __forceinline__ void add(const RowBatch<LANES>& batch, const Loads& loads,
                                      Partial& partial) const {
    if constexpr (Config::HAS_SCORES) {
      add_by_scores(batch, loads, partial);
    } else {
      add_by_keys(batch, loads, partial);
    }
  }

  // All lanes of a group compute the scores, and the weights, of all nonzeros of a batch.
  __device__ __forceinline__ void add_by_keys(const RowBatch<LANES>& batch, const Loads& loads,
                                              Partial& partial) const {
    float scores[BATCH], largest = minus_infinity();
    group_dots<Element, LANES>(loads.keys, own, scores);
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      scores[j] *= scale;
      if constexpr (Config::BIAS_OR_DROPOUT)
        scores[j] += __shfl_sync(FULL_MASK, loads.bias, batch.lane_of(j));
      if (j >= batch.size) scores[j] = minus_infinity();
      largest = fmaxf(largest, scores[j]);
    }
    const float base = partial.raise_rarely(largest);
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      float weight = gemm_core::ptx::ex2(scores[j] - base);
      partial.sum += weight;
      if constexpr (Config::BIAS_OR_DROPOUT)
        weight *= __shfl_sync(FULL_MASK, loads.kept, batch.lane_of(j));
      add_part<Element>(partial.out, loads.values[j], weight);
    }
  }

  // Each lane computes the weight of its own nonzero; it is 0 in those without any.
  __device__ __forceinline__ void add_by_scores(const RowBatch<LANES>& batch, const Loads& loads,
                                                Partial& partial) const {
    float score = minus_infinity();
    if (batch.has_own) score = loads.score * scale;
    if constexpr (Config::BIAS_OR_DROPOUT) score += loads.bias;
    const float base = partial.template raise_rarely_to_largest<LANES>(score);
    const float own_weight = gemm_core::ptx::ex2(score - base);
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      float weight = __shfl_sync(FULL_MASK, own_weight, batch.lane_of(j));
      partial.sum += weight;
      if constexpr (Config::BIAS_OR_DROPOUT)
        weight *= __shfl_sync(FULL_MASK, loads.kept, batch.lane_of(j));
      add_part<Element>(partial.out, loads.values[j], weight);
    }
  }

  __device__ __forceinline__ void store(int row, const Partial& partial) const {
    const i64 in_heads = first_row + row;
    store_row<LANES, VALUE_CHUNKS, Config::STORE_BYTES, Config::VALUE_NO_TAIL>(
        p.out + in_heads * p.dv, p.dv, partial.out, partial.normalizer());
    if (static_cast<int>(threadIdx.x) % LANES == 0) p.lse[in_heads] = partial.log_sum();
  }
};

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  run_launch<Forward, Config::MERGES>(p, 0, shared);
}
