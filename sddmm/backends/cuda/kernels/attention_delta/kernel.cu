// The sum of dO * O over each row of attention's result, less the gradient of the row's logarithm,
// stored beside that logarithm: what the gradients of all scores of the row share. Adds two floats
// per row to memory. Limit: reading both rows once.
#include "gemm_core/parameters.cuh"
#include "sddmm/row_part.cuh"
#include "sddmm/row_stats.cuh"

using namespace sddmm;

// What attention_delta/host.py chooses, by macro.
struct Config {
  // The type of the result and of its gradient.
  using Element = SDDMM_ELEMENT;
  // The number of bytes of one load; all rows start and end at multiples of it.
  static constexpr int LOAD_BYTES = SDDMM_LOAD_BYTES;
  // The number of lanes that load a row, 16 bytes each at a time, and how often they do so.
  static constexpr int LANES = SDDMM_LANES, CHUNKS = SDDMM_CHUNKS;
  // Whether rows end where the last lane's last load does.
  static constexpr bool NO_TAIL = SDDMM_NO_TAIL;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
};

using Element = Config::Element;
constexpr int LANES = Config::LANES;
using Rows = RowParts<Element, LANES, Config::CHUNKS, Config::LOAD_BYTES, Config::NO_TAIL>;

struct Arguments {
  const Element *out, *grad;  // (heads, m, dv); out is contiguous
  const float *grad_lse, *lse;  // (heads, m); grad_lse may be null
  RowStats* stats;            // (heads, m)
  i64 head_grad;              // elements from head to head
  i64 rows;                   // heads * m
  int pitch_grad;             // bytes from row to row
  int m, dv;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  const i64 group = (static_cast<i64>(blockIdx.x) * Config::THREADS + threadIdx.x) / LANES;
  const i64 row = group < p.rows ? group : p.rows - 1;
  const int head = static_cast<int>(row / p.m), in_head = static_cast<int>(row - i64(head) * p.m);
  const Rows out(p.out, static_cast<i64>(head) * p.m * p.dv,
                 p.dv * static_cast<int>(sizeof(Element)), p.dv);
  const Rows grad(p.grad, head * p.head_grad, p.pitch_grad, p.dv);
  float elements[Config::CHUNKS][Rows::ELEMENTS];
  widen<Element>(out.load(in_head), elements);
  const float sum = group_sum<LANES>(dot<Element>(grad.load(in_head), elements));
  if (group < p.rows && threadIdx.x % LANES == 0) {
    const float delta = p.grad_lse == nullptr ? sum : sum - p.grad_lse[row];
    p.stats[row] = {p.lse[row], delta};
  }
}
