// Chosen rows of a dense result: the sum of an own row and one that arrived, rounded once. Adds to
// torch's gather, sum and scatter that every row is read and written once.
// Limit: memory's rate at the rows that are chosen.
#include "gemm_core/parameters.cuh"
#include "sddmm/value.cuh"

using namespace sddmm;

// What add_rows/host.py chooses, by macro.
struct Config {
  // The types of the own rows, of those that arrived, and of the sums as they are stored.
  using Own = SDDMM_OWN;
  using Arrived = SDDMM_ARRIVED;
  using Total = SDDMM_TOTAL;
  // The number of lanes that add a row, and of elements that each takes at a time.
  static constexpr int LANES = SDDMM_LANES;
  static constexpr int ITEMS = SDDMM_ITEMS;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
};

struct Arguments {
  const Config::Own* own;          // rows of k, `own_pitch` elements apart: all, or the chosen ones
  const Config::Arrived* arrived;  // (count, k), one row after another
  const i64* rows;                 // (count,): the row of each of them, no two the same
  Config::Total* totals;           // rows of k, `pitch` elements apart; may be `own`
  i64 own_pitch, pitch, count;
  int k, is_compact;               // whether `own` has the chosen rows alone
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// What a lane loads or stores at once.
template <class T>
struct alignas(Config::ITEMS * sizeof(T) < 16 ? Config::ITEMS * sizeof(T) : 16) Items {
  T item[Config::ITEMS];
};

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  using Own = Config::Own;
  using Arrived = Config::Arrived;
  using Total = Config::Total;
  constexpr int LANES = Config::LANES, ITEMS = Config::ITEMS;
  const i64 thread = static_cast<i64>(blockIdx.x) * Config::THREADS + threadIdx.x;
  const i64 i = thread / LANES;
  if (i >= p.count) return;
  const Own* own = p.own + (p.is_compact ? i : p.rows[i]) * p.own_pitch;
  const Arrived* arrived = p.arrived + i * p.k;
  Total* totals = p.totals + p.rows[i] * p.pitch;
  for (int j = static_cast<int>(thread % LANES) * ITEMS; j < p.k; j += LANES * ITEMS) {
    const auto x = *reinterpret_cast<const Items<Own>*>(own + j);
    const auto y = *reinterpret_cast<const Items<Arrived>*>(arrived + j);
    Items<Total> sum;
#pragma unroll
    for (int e = 0; e < ITEMS; ++e)
      sum.item[e] = Narrow<Total>::from(widened(x.item[e]) + widened(y.item[e]));
    *reinterpret_cast<Items<Total>*>(totals + j) = sum;
  }
}
