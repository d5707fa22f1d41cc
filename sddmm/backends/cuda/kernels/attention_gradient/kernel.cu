// The gradients of sparse attention by gathering: the weights are computed anew from the logarithms
// that the forward kept. One launch by rows (dQ, dbias), one by columns (dK, dV). Adds no arrays of
// nonzeros and no atomics: cut rows are merged in a fixed order. Limit: two rows, out of L2.
#include "gemm_core/parameters.cuh"
#include "sddmm/dropout.cuh"
#include "sddmm/row_part.cuh"
#include "sddmm/share_walk.cuh"
#include "sddmm/softmax_sum.cuh"

using namespace sddmm;

// What attention_gradient/host.py chooses, by macro.
struct Config {
  // The type of the operands and of the gradients.
  using Element = SDDMM_ELEMENT;
  // Whether columns are summed: the "rows" of the pattern are then the columns of the matrix.
  static constexpr bool COLUMNS = SDDMM_COLUMNS;
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
constexpr bool COLUMNS = Config::COLUMNS;
constexpr int LANES = Config::LANES, ELEMENTS = CHUNK_ELEMENTS<Element>;
constexpr int KEY_CHUNKS = Config::KEY_CHUNKS, VALUE_CHUNKS = Config::VALUE_CHUNKS;
using Keys = RowParts<Element, LANES, KEY_CHUNKS, Config::LOAD_BYTES, Config::KEY_NO_TAIL>;
using Values = RowParts<Element, LANES, VALUE_CHUNKS, Config::LOAD_BYTES, Config::VALUE_NO_TAIL>;

struct Arguments {
  // The rows that belong to the rows of the pattern, and those that belong to its columns: of Q and
  // K, and of dO and V. COLUMNS exchanges them.
  const Element *own_key, *own_value, *key, *value;
  const Element* bias;            // (nnz,) or (heads, nnz); may be null
  const float *lse, *delta;       // (heads, m): log(sum of exponentials), and sum of dO * O
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
  int pitch_own_key, pitch_own_value, pitch_key, pitch_value;         // bytes from row to row
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

// The sums of a row, of which a lane has its part: ds * (row of K), or of a column: ds * (row of Q)
// and weight * (row of dO).
struct Partial {
  static constexpr int VALUES = COLUMNS ? VALUE_CHUNKS : 0;
  static constexpr int COUNT = (KEY_CHUNKS + VALUES) * ELEMENTS;
  float sums[KEY_CHUNKS + VALUES][ELEMENTS] = {};

  template <class Use>
  __device__ __forceinline__ void each(const Use& use) {
#pragma unroll
    for (int c = 0; c < KEY_CHUNKS + VALUES; ++c)
#pragma unroll
      for (int e = 0; e < ELEMENTS; ++e) use(c * ELEMENTS + e, sums[c][e]);
  }
  __device__ __forceinline__ void merge(const Partial& other) {
#pragma unroll
    for (int c = 0; c < KEY_CHUNKS + VALUES; ++c)
#pragma unroll
      for (int e = 0; e < ELEMENTS; ++e) sums[c][e] += other.sums[c][e];
  }
};
static_assert(GroupPieces<Partial, LANES, Config::THREADS>::BYTES <= Config::SHARED_BYTES, "");

// The gradients of one head.
struct Backward {
  static constexpr int LANES = ::LANES, BATCH = Config::BATCH, THREADS = Config::THREADS;
  using Partial = ::Partial;
  // The rows of a batch; and of the lane's own nonzero what belongs to its query, its bias, and the
  // factor by which dropout keeps it.
  struct Loads {
    Keys::Part keys[BATCH];
    Values::Part values[BATCH];
    float lse, delta, bias, kept;
  };

  const Arguments& p;
  const int head;
  const Keys own_key, key;
  const Values own_value, value;
  const Dropout dropout;
  const float *lse, *delta;  // of the head
  // The row, or column, that is summed.
  Keys::Part own_keys{};
  Values::Part own_values{};
  float own_lse = 0.f, own_delta = 0.f;  // of a row

  __device__ __forceinline__ Backward(const Arguments& p, int head)
      : p(p),
        head(head),
        own_key(p.own_key, head * p.head_own_key, p.pitch_own_key, p.d),
        key(p.key, head * p.head_key, p.pitch_key, p.d),
        own_value(p.own_value, head * p.head_own_value, p.pitch_own_value, p.dv),
        value(p.value, head * p.head_value, p.pitch_value, p.dv),
        dropout{p.seed, p.dropout_threshold, p.kept},
        lse(from_element(p.lse, static_cast<i64>(head) * p.query_count)),
        delta(from_element(p.delta, static_cast<i64>(head) * p.query_count)) {}

  __device__ __forceinline__ void begin_row(int row) {
    own_keys = own_key.load(row), own_values = own_value.load(row);
    if constexpr (!COLUMNS) own_lse = lse[row], own_delta = delta[row];
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
      loads.lse = loads.delta = 0.f;
      if (batch.has_own) loads.lse = lse[batch.own.col], loads.delta = delta[batch.own.col];
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
                                      Partial& partial) const {
    auto of = [&](float x, int j) { return __shfl_sync(FULL_MASK, x, batch.lane_of(j)); };
    float scores[BATCH], grads[BATCH];  // grads: of the weights
    group_dots<Element, LANES>(loads.keys, own_keys, scores);
    group_dots<Element, LANES>(loads.values, own_values, grads);
    const float scale = p.scale * LOG2_E;
    float own_offset = -finite_base(COLUMNS ? loads.lse : own_lse);  // in units of log(2)
    if constexpr (Config::BIAS_OR_DROPOUT) own_offset += loads.bias;
    own_offset *= LOG2_E;
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      const float offset = COLUMNS || Config::BIAS_OR_DROPOUT ? of(own_offset, j) : own_offset;
      const float delta = COLUMNS ? of(loads.delta, j) : own_delta;
      const float kept = Config::BIAS_OR_DROPOUT ? of(loads.kept, j) : 1.f;
      float weight = gemm_core::ptx::ex2(scores[j] * scale + offset);
      float grad = weight * (kept * grads[j] - delta);  // of the score
      weight *= kept;
      if (j >= batch.size) weight = grad = 0.f;
      grads[j] = grad;
#pragma unroll
      for (int c = 0; c < KEY_CHUNKS; ++c)
        add_scaled<Element>(partial.sums[c], loads.keys[j].chunk[c], grad);
#pragma unroll
      for (int c = 0; c < Partial::VALUES; ++c)
        add_scaled<Element>(partial.sums[KEY_CHUNKS + c], loads.values[j].chunk[c], weight);
    }
    if constexpr (!COLUMNS && Config::BIAS_OR_DROPOUT)
      if (p.bias_grad != nullptr && batch.has_own) {
        float own_grad = grads[0];
#pragma unroll
        for (int j = 1; j < BATCH; ++j)
          if (static_cast<int>(threadIdx.x) % 32 == batch.lane_of(j)) own_grad = grads[j];
        store_bias_grad(batch.own.position, own_grad);
      }
  }

  __device__ __forceinline__ void store_bias_grad(int position, float grad) const {
    if (!p.sums_bias) {
      static_cast<Element*>(p.bias_grad)[static_cast<i64>(head) * p.nnz + position] =
          Narrow<Element>::from(grad);
    } else {
      float& sum = static_cast<float*>(p.bias_grad)[position];
      sum = head == 0 ? grad : sum + grad;
    }
  }

  __device__ __forceinline__ void store(int row, const Partial& partial) const {
    const i64 in_heads = static_cast<i64>(head) * p.row_count + row;
    if (p.key_grad != nullptr)
      store_row<LANES, KEY_CHUNKS, Config::STORE_BYTES>(p.key_grad + in_heads * p.d, p.d,
                                                        partial.sums, p.scale);
    if constexpr (COLUMNS)
      if (p.value_grad != nullptr)
        store_row<LANES, VALUE_CHUNKS, Config::STORE_BYTES>(
            p.value_grad + in_heads * p.dv, p.dv, partial.sums + KEY_CHUNKS, 1.f);
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
    if (threadIdx.x < LANES) Backward(p, head).store(cut.row, merged);
  } else {
    constexpr int WARPS = Config::THREADS / 32;
    const int blocks = (p.shares_per_head + WARPS - 1) / WARPS, in_launch = blockIdx.x / blocks;
    const int share = (blockIdx.x - in_launch * blocks) * WARPS + threadIdx.x / 32;
    if (share >= p.shares_per_head) return;
    const int head = p.first_head + in_launch;
    Backward backward(p, head);
    auto new_pieces = [&] {
      const i64 head_pieces = static_cast<i64>(head) * p.pieces_per_head;
      return WarpPieces<Partial, LANES>{p.pieces + head_pieces * (Partial::COUNT * LANES)};
    };
    walk_share(backward, SharedNonzeros{p.rows, p.cols, p.perm, p.shares, p.slots}, share, floats,
               new_pieces);
  }
}
