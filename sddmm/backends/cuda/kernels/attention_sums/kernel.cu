// dK and dV of sparse attention by gathering, where attention_gradient has stored the weights of all
// nonzeros: the sums over each column of grad * (row of Q) and weight * (row of dO). No atomics: cut
// columns are merged in a fixed order. Limit: two rows of a nonzero, out of L2.
#include "gemm_core/parameters.cuh"
#include "sddmm/gradient_sums.cuh"
#include "sddmm/row_part.cuh"
#include "sddmm/share_walk.cuh"

using namespace sddmm;

// What attention_sums/host.py chooses, by macro.
struct Config {
  // The type of the operands and of the gradients.
  using Element = SDDMM_ELEMENT;
  // Whether this launch merges the pieces of cut columns.
  static constexpr bool MERGES = SDDMM_MERGES;
  // The number of bytes of one load of an operand, and of one store of a gradient; all rows start and
  // end at multiples of it.
  static constexpr int LOAD_BYTES = SDDMM_LOAD_BYTES, STORE_BYTES = SDDMM_STORE_BYTES;
  // The number of lanes that load a row, 16 bytes each at a time: a group; a power of two.
  static constexpr int LANES = SDDMM_LANES;
  // The number of times that they do so for a row of Q, and for one of dO.
  static constexpr int KEY_CHUNKS = SDDMM_KEY_CHUNKS, VALUE_CHUNKS = SDDMM_VALUE_CHUNKS;
  // Whether rows of Q, and of dO, end where the last lane's last load does.
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
using Keys = RowParts<Element, LANES, KEY_CHUNKS, Config::LOAD_BYTES, Config::KEY_NO_TAIL>;
using Values = RowParts<Element, LANES, VALUE_CHUNKS, Config::LOAD_BYTES, Config::VALUE_NO_TAIL>;
using Partial = GradientSums<KEY_CHUNKS, VALUE_CHUNKS, ELEMENTS>;

struct Arguments {
  const Element *key, *value;      // whose rows are gathered: Q and dO
  const ScoreWeight* weights;      // (heads of this launch, nnz)
  Element *key_grad, *value_grad;  // (heads, n, d or dv), contiguous; may be null
  const int *rows, *cols, *perm;   // (nnz,), sorted by column: `rows` are columns; perm may be null
  const RowShare* shares;          // (shares,)
  const int2* slots;               // (shares,), see walk_share; read where columns are cut
  const CutRow* cut_rows;          // (cut_rows,)
  float* pieces;                   // (heads, pieces, Partial::COUNT, LANES)
  i64 head_key, head_value;        // elements from head to head
  int pitch_key, pitch_value;      // bytes from row to row
  int shares_per_head, cut_rows_per_head, pieces_per_head;
  int nnz, row_count, d, dv;  // row_count: that of columns
  int first_head;  // of this launch
  float scale;     // of dot products
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// The gradients of one head.
struct Sums {
  static constexpr int LANES = ::LANES, BATCH = Config::BATCH;
  static constexpr int THREADS = Config::THREADS, SHARED_BYTES = Config::SHARED_BYTES;
  using Partial = ::Partial;
  // The rows of a batch, and the weights of the lane's own nonzero, 0 in those without any.
  struct Loads {
    Keys::Part keys[BATCH];
    Values::Part values[BATCH];
    ScoreWeight own;
  };

  const Arguments& p;
  const i64 first_row;  // of the head, among the rows of all heads
  const Keys key;
  const Values value;
  const ScoreWeight* const weights;  // of the head

  __device__ __forceinline__ Sums(const Arguments& p, int head)
      : p(p),
        first_row(static_cast<i64>(head) * p.row_count),
        key(p.key, head * p.head_key, p.pitch_key, p.d),
        value(p.value, head * p.head_value, p.pitch_value, p.dv),
        weights(from_element(p.weights, static_cast<i64>(head - p.first_head) * p.nnz)) {}

  __device__ __forceinline__ void begin_row(int) {}

  __device__ __forceinline__ Loads load(const RowBatch<LANES>& batch) const {
    Loads loads;
    loads.own = {0.f, 0.f};
    if (batch.has_own) loads.own = weights[batch.own.position];
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      const int row = __shfl_sync(FULL_MASK, batch.own.col, batch.lane_of(j));
      loads.keys[j] = key.load_if(j < batch.size, row);
      loads.values[j] = value.load_if(j < batch.size, row);
    }
    return loads;
  }

  __device__ __forceinline__ void add(const RowBatch<LANES>& batch, const Loads& loads,
                                      Partial& partial) const {
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      const int lane = batch.lane_of(j);
      const float grad = __shfl_sync(FULL_MASK, loads.own.grad, lane);
      const float weight = __shfl_sync(FULL_MASK, loads.own.weight, lane);
      add_part<Element>(partial.key, loads.keys[j], grad);
      add_part<Element>(partial.value, loads.values[j], weight);
    }
  }

  __device__ __forceinline__ void store(int column, const Partial& partial) const {
    partial.template store<LANES, Config::STORE_BYTES, Config::KEY_NO_TAIL, Config::VALUE_NO_TAIL>(
        p.key_grad, p.value_grad, first_row + column, p.d, p.dv, p.scale);
  }
};

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(16) unsigned char shared[];
  run_launch<Sums, Config::MERGES>(p, p.first_head, shared);
}
