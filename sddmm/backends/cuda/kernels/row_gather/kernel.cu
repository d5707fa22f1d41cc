// SDDMM by gathering: a warp takes equally many nonzeros, loads their rows of A and of B by 16 bytes,
// and keeps a row of A in registers while it stays the same. Any pattern, in any order, without
// preparation. Limit: the bytes of B's rows, one row per nonzero, out of L2.
#include "sddmm/gather.cuh"

using namespace sddmm;

using Element = SDDMM_ELEMENT;
using Rows = GlobalRows<Element, SDDMM_BYTES, SDDMM_WHOLE>;

struct Arguments {
  const Element *a, *b, *values;
  const Sum<Element>* before;  // sums of earlier elements of k, laid out as out, or null
  SDDMM_OUTPUT* out;
  const int *rows, *cols, *order;
  i64 count;               // nonzeros
  i64 pitch_a, pitch_b;    // elements from row to row
  i64 head_a, head_b, head_out;  // and from head to head
  i64 chunks;              // warps a head,
  int chunk;               // of so many nonzeros each
  int heads, k;
  double alpha;
};

extern "C" __global__ void __launch_bounds__(SDDMM_THREADS, SDDMM_MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  const i64 warp = static_cast<i64>(blockIdx.x) * (SDDMM_THREADS / 32) + threadIdx.x / 32;
  const i64 head = warp / p.chunks, begin = (warp - head * p.chunks) * p.chunk;
  if (head >= p.heads) return;
  const i64 end = begin + p.chunk < p.count ? begin + p.chunk : p.count;
  const Result<Element, SDDMM_OUTPUT> result{p.out + head * p.head_out, p.values,
                                             static_cast<Sum<Element>>(p.alpha)};
  constexpr int pass = SDDMM_SEGMENTS * 64 / sizeof(Element);
  gather<Element, SDDMM_BATCHES, SDDMM_SEGMENTS, SDDMM_SINGLE, false>(
      Rows{p.a + head * p.head_a, p.pitch_a, p.k}, Rows{p.b + head * p.head_b, p.pitch_b, p.k},
      p.rows, p.cols, p.order, begin, end, (p.k + pass - 1) / pass,
      [&](i64 at, Sum<Element> sum) {
        if (p.before != nullptr) sum += p.before[head * p.head_out + at];
        result.store(at, sum);
      });
}
