// The gradients of sparse attention by gathering, from the logarithms that the forward kept: a launch by
// rows (dQ, dbias), and one by columns (dK, dV), unless the former stores the weights for
// attention_sums. No atomics: cut rows are merged in a fixed order. Limit: two rows, out of L2.
#include "gemm_core/parameters.cuh"
#include "sddmm/dropout.cuh"
#include "sddmm/gradient_sums.cuh"
#include "sddmm/row_part.cuh"
#include "sddmm/row_stats.cuh"
#include "sddmm/share_walk.cuh"
#include "sddmm/softmax_sum.cuh"

using namespace sddmm;

// What attention_gradient/host.py chooses, by macro.
struct Config {
  // The type of the operands and of the gradients.
  using Element = SDDMM_ELEMENT;
  // Whether columns are summed: the "rows" of the pattern are then the columns of the matrix.
  static constexpr bool COLUMNS = SDDMM_COLUMNS;
  // Whether weights are stored, by rows; `delta` is then computed here.
  static constexpr bool STORES_WEIGHTS = SDDMM_STORES_WEIGHTS;
  // Whether this launch merges the pieces of cut rows.
  static constexpr bool MERGES = SDDMM_MERGES;
  // The number of bytes of one load of an operand, and of one store of a gradient; all rows start and
  // end at multiples of it.
  static constexpr int LOAD_BYTES = SDDMM_LOAD_BYTES, STORE_BYTES = SDDMM_STORE_BYTES;
  // The number of lanes that load a row, 16 bytes each at a time: a group; a power of two.
  static constexpr int LANES = SDDMM_LANES;
  // The number of times that they do so for a row of Q or K, and for one of V or dO.
  static constexpr int KEY_CHUNKS = SDDMM_KEY_CHUNKS, VALUE_CHUNKS = SDDMM_VALUE_CHUNKS;
  // Whether rows of Q and K, and of V and dO, end where the last lane's last load does.
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
constexpr bool COLUMNS = Config::COLUMNS, STORES_WEIGHTS = Config::STORES_WEIGHTS;
static_assert(!(COLUMNS && STORES_WEIGHTS), "weights are stored by rows");
constexpr int LANES = Config::LANES, ELEMENTS = CHUNK_ELEMENTS<Element>;
constexpr int KEY_CHUNKS = Config::KEY_CHUNKS, VALUE_CHUNKS = Config::VALUE_CHUNKS;
template <bool HAS_BEYOND>
using Keys = RowParts<Element, LANES, KEY_CHUNKS, Config::LOAD_BYTES, Config::KEY_NO_TAIL, HAS_BEYOND>;
template <bool HAS_BEYOND>
using Values =
    RowParts<Element, LANES, VALUE_CHUNKS, Config::LOAD_BYTES, Config::VALUE_NO_TAIL, HAS_BEYOND>;
// Rows of K and V belong to columns: they are the pass's own rows by columns, the gathered ones by rows.
constexpr bool OWN_BEYOND = Config::HAS_BEYOND && COLUMNS, OTHERS_BEYOND = Config::HAS_BEYOND && !COLUMNS;
using KeyPart = RowPart<KEY_CHUNKS>;
using ValuePart = RowPart<VALUE_CHUNKS>;

struct Arguments {
  // The rows that belong to the rows of the pattern, and those that belong to its columns: of Q and
  // K, and of dO and V. COLUMNS exchanges them.
  const Element *own_key, *own_value, *key, *value;
  const Element* bias;            // (nnz,) or (heads, nnz); may be null
  const RowStats* stats;          // (heads, m); not where STORES_WEIGHTS, which has the next three
  const Element* out;             // O, (heads, m, dv), contiguous
  const float *lse, *grad_lse;    // (heads, m); grad_lse may be null
  ScoreWeight* weights;           // (heads of this launch, nnz)
  Element *key_grad, *value_grad;  // (heads, rows of the pattern, d or dv), contiguous; may be null
  void* bias_grad;                // (heads, nnz) elements, or (nnz,) floats; may be null
  const int *rows, *cols, *perm;  // (nnz,), sorted by row; perm may be null
  const RowShare* shares;         // (shares,)
  const int2* slots;              // (shares,), see walk_share; read where rows are cut
  const CutRow* cut_rows;         // (cut_rows,)
  float* pieces;                  // (heads, pieces, Partial::COUNT, LANES)
  const unsigned long long* seed;  // null without dropout
  i64 dropout_threshold;
  i64 head_own_key, head_own_value, head_key, head_value, head_bias;  // elements from head to head
  i64 shift_k, shift_v;                                               // see RowsBeyond
  int pitch_own_key, pitch_own_value, pitch_key, pitch_value;         // bytes from row to row
  int beyond_pitch_k, beyond_pitch_v, first_beyond;
  int shares_per_head, cut_rows_per_head, pieces_per_head;
  int nnz, row_count, query_count, d, dv;
  int first_head;  // of this launch
  // How dbias is stored: as elements of each head; as floats, which the launch of the first head
  // sets, and to which the launches of the others add.
  int sums_bias;
  float scale;  // of dot products
  float kept;   // the factor of weights that dropout keeps
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// By rows: ds * (row of K); by columns: ds * (row of Q), then weight * (row of dO).
using Partial = GradientSums<KEY_CHUNKS, COLUMNS ? VALUE_CHUNKS : 0, ELEMENTS>;

// The gradients of one head.
struct Backward {
  static constexpr int LANES = ::LANES, BATCH = Config::BATCH;
  static constexpr int THREADS = Config::THREADS, SHARED_BYTES = Config::SHARED_BYTES;
  using Partial = ::Partial;
  // The rows of a batch; and of the lane's own nonzero what belongs to its query, its bias, and the
  // factor by which dropout keeps it.
  struct Loads {
    KeyPart keys[BATCH];
    ValuePart values[BATCH];
    RowStats stats;
    float bias, kept;
  };

  const Arguments& p;
  const int head;
  const i64 first_row;  // of the head, among the rows of all heads
  Keys<OWN_BEYOND> own_key;
  Keys<OTHERS_BEYOND> key;
  Values<OWN_BEYOND> own_value;
  Values<OTHERS_BEYOND> value;
  const Dropout dropout;
  const RowStats* const stats;  // of the head, unless STORES_WEIGHTS
  // The row, or column, that is summed.
  KeyPart own_keys{};
  ValuePart own_values{};
  RowStats own_stats{0.f, 0.f};  // of a row
  // The row of O, until its product with that of dO is summed.
  ValuePart own_out{};
  bool has_delta = true;

  __device__ __forceinline__ Backward(const Arguments& p, int head)
      : p(p),
        head(head),
        first_row(static_cast<i64>(head) * p.row_count),
        own_key(p.own_key, head * p.head_own_key, p.pitch_own_key, p.d),
        key(p.key, head * p.head_key, p.pitch_key, p.d),
        own_value(p.own_value, head * p.head_own_value, p.pitch_own_value, p.dv),
        value(p.value, head * p.head_value, p.pitch_value, p.dv),
        dropout{p.seed, p.dropout_threshold, p.kept},
        stats(STORES_WEIGHTS
                  ? nullptr
                  : from_element(p.stats, static_cast<i64>(head) * p.query_count)) {
    if constexpr (Config::HAS_BEYOND) {
      own_key.beyond = key.beyond = {p.shift_k, p.beyond_pitch_k, p.first_beyond};
      own_value.beyond = value.beyond = {p.shift_v, p.beyond_pitch_v, p.first_beyond};
    }
  }

  __device__ __forceinline__ void begin_row(int row) {
    own_keys = own_key.template load<true>(row), own_values = own_value.template load<true>(row);
    if constexpr (STORES_WEIGHTS) {
      const i64 in_heads = first_row + row;
      own_out = Values<false>(p.out, in_heads * p.dv, 0, p.dv, false).template load<true>(0);
      own_stats = {p.lse[in_heads], p.grad_lse == nullptr ? 0.f : -p.grad_lse[in_heads]};
      has_delta = false;
    } else if constexpr (!COLUMNS) {
      own_stats = stats[row];
    }
  }

  __device__ __forceinline__ Loads load(const RowBatch<LANES>& batch) const {
    Loads loads;
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      const int col = __shfl_sync(FULL_MASK, batch.own.col, batch.lane_of(j));
      loads.keys[j] = key.load_if(j < batch.size, col);
      loads.values[j] = value.load_if(j < batch.size, col);
    }
    if constexpr (COLUMNS) {
      loads.stats = {0.f, 0.f};
      if (batch.has_own) loads.stats = stats[batch.own.col];
    }
    if constexpr (Config::BIAS_OR_DROPOUT) {
      loads.bias = 0.f, loads.kept = 1.f;
      if (batch.has_own) {
        const int position = batch.own.position;
        if (p.bias != nullptr)
          loads.bias = widened(p.bias[head * p.head_bias + position]);
        loads.kept = dropout.factor(head, position);
      }
    }
    return loads;
  }

  __device__ __forceinline__ void add(const RowBatch<LANES>& batch, const Loads& loads,
                                      Partial& partial) {
    if constexpr (STORES_WEIGHTS) {
      complete_delta();
      add_and_store(batch, loads, partial);
    } else {
      add_only(batch, loads, partial);
    }
  }

  // All lanes of a group compute the weights of all nonzeros of a batch.
  __device__ __forceinline__ void add_only(const RowBatch<LANES>& batch, const Loads& loads,
                                           Partial& partial) const {
    float scores[BATCH], grads[BATCH];  // grads: of the weights
    group_dots<Element, LANES>(loads.keys, own_keys, scores);
    group_dots<Element, LANES>(loads.values, own_values, grads);
    auto of = [&](float x, int j) { return __shfl_sync(FULL_MASK, x, batch.lane_of(j)); };
    float own_bias = -finite_base(COLUMNS ? loads.stats.lse : own_stats.lse);
    if constexpr (Config::BIAS_OR_DROPOUT) own_bias += loads.bias;
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      const float bias = COLUMNS || Config::BIAS_OR_DROPOUT ? of(own_bias, j) : own_bias;
      const float delta = COLUMNS ? of(loads.stats.delta, j) : own_stats.delta;
      const float kept = Config::BIAS_OR_DROPOUT ? of(loads.kept, j) : 1.f;
      ScoreWeight weight = weight_of(scores[j], bias, kept, grads[j], delta);
      if (j >= batch.size) weight = {0.f, 0.f};
      grads[j] = weight.grad;
      add_nonzero(loads, j, weight, partial);
    }
    if constexpr (!COLUMNS && Config::BIAS_OR_DROPOUT)
      if (batch.has_own) store_bias_grad(batch.own.position, own_of(batch, grads));
  }

  // Each lane computes the weight of its own nonzero, which it stores; it is 0 in those without any.
  __device__ __forceinline__ void add_and_store(const RowBatch<LANES>& batch, const Loads& loads,
                                                Partial& partial) const {
    float dots[BATCH];
    group_dots<Element, LANES>(loads.keys, own_keys, dots);
    const float score = own_of(batch, dots);
    group_dots<Element, LANES>(loads.values, own_values, dots);
    const float grad = own_of(batch, dots);
    ScoreWeight own{0.f, 0.f};
    if (batch.has_own) {
      const float bias = Config::BIAS_OR_DROPOUT ? loads.bias : 0.f;
      const float kept = Config::BIAS_OR_DROPOUT ? loads.kept : 1.f;
      own = weight_of(score, bias - finite_base(own_stats.lse), kept, grad, own_stats.delta);
      p.weights[static_cast<i64>(head - p.first_head) * p.nnz + batch.own.position] = own;
      if constexpr (Config::BIAS_OR_DROPOUT) store_bias_grad(batch.own.position, own.grad);
    }
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      const int lane = batch.lane_of(j);
      add_nonzero(loads, j, {__shfl_sync(FULL_MASK, own.grad, lane), 0.f}, partial);
    }
  }

  // The value of this lane's nonzero, among those of its batch.
  static __device__ __forceinline__ float own_of(const RowBatch<LANES>& batch,
                                                 const float (&values)[BATCH]) {
    const int own_j = (static_cast<int>(threadIdx.x) - batch.first) & (LANES - 1);
    float own = values[0];
#pragma unroll
    for (int j = 1; j < BATCH; ++j)
      if (own_j == j) own = values[j];
    return own;
  }

  // score: the dot product. grad: the gradient of the weight.
  __device__ __forceinline__ ScoreWeight weight_of(float score, float bias, float kept, float grad,
                                                   float delta) const {
    const float weight = gemm_core::ptx::ex2(score * (p.scale * LOG2_E) + bias * LOG2_E);
    return {weight * (kept * grad - delta), weight * kept};
  }

  static __device__ __forceinline__ void add_nonzero(const Loads& loads, int j, ScoreWeight weight,
                                                     Partial& partial) {
    add_part<Element>(partial.key, loads.keys[j], weight.grad);
    if constexpr (COLUMNS) add_part<Element>(partial.value, loads.values[j], weight.weight);
  }

  // Sums dO * O over the lanes of groups whose row is new.
  __device__ __forceinline__ void complete_delta() {
    if (!__any_sync(FULL_MASK, !has_delta)) return;
    const ValuePart rows[2] = {own_out, own_out};  // RowDot takes pairs
    float sums[2];
    group_dots<Element, LANES>(rows, own_values, sums);
    if (!has_delta) own_stats.delta += sums[0];
    has_delta = true;
  }

  __device__ __forceinline__ void store_bias_grad(int position, float grad) const {
    if (p.bias_grad == nullptr) return;
    if (!p.sums_bias) {
      static_cast<Element*>(p.bias_grad)[static_cast<i64>(head) * p.nnz + position] =
          Narrow<Element>::from(grad);
    } else {
      float& sum = static_cast<float*>(p.bias_grad)[position];
      sum = head == 0 ? grad : sum + grad;
    }
  }

  __device__ __forceinline__ void store(int row, const Partial& partial) const {
    partial.template store<LANES, Config::STORE_BYTES, Config::KEY_NO_TAIL, Config::VALUE_NO_TAIL>(
        p.key_grad, p.value_grad, first_row + row, p.d, p.dv, p.scale);
  }
};

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  run_launch<Backward, Config::MERGES>(p, p.first_head, shared);
}
