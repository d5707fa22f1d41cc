// The second pass of spmm_tile: adds what several blocks computed of the same rows, part by part
// in ascending order; adds a fixed order of summation without atomics. Limit: the bytes of the
// partial sums, out of L2.
#include "gemm_core/parameters.cuh"
#include "sddmm/row_values.cuh"

using namespace sddmm;

// What spmm_tile/host.py chooses, by macro.
struct Config {
  // The type of the output.
  using Output = SDDMM_OUTPUT;
  // The number of columns of a slice, and of rows whose sums a block adds.
  static constexpr int COLUMNS = SDDMM_COLUMNS, ROWS = SDDMM_ROWS;
  // The number of rows of a slot.
  static constexpr int SIDE = SDDMM_SIDE;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
};
constexpr int SIDE = Config::SIDE;
static_assert(Config::ROWS * Config::COLUMNS == 4 * Config::THREADS, "a thread adds four sums");
static_assert(SIDE % Config::ROWS == 0, "equal shares");

struct Arguments {
  const float* partial;  // of each head, slice and slot, SIDE x COLUMNS sums
  Config::Output* out;
  const int4* shared_rows;  // (first row, first slot, number of slots, from slot to slot)
  int shared_count, slices, slots, m, k;
  double alpha;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  constexpr int groups = SIDE / Config::ROWS;
  const int group = blockIdx.x % groups, index = blockIdx.x / groups;
  const int slice = index / p.shared_count % p.slices;
  const i64 head = index / p.shared_count / p.slices;
  const int4 rows = p.shared_rows[index % p.shared_count];
  const int at = group * (Config::ROWS * Config::COLUMNS) + 4 * static_cast<int>(threadIdx.x);
  const float4* const first = reinterpret_cast<const float4*>(
      p.partial + ((head * p.slices + slice) * p.slots + rows.y) * (SIDE * Config::COLUMNS) + at);

  float4 sum = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 8
  for (int slot = 0; slot < rows.z; ++slot) {
    const float4 part = first[static_cast<i64>(slot) * rows.w * (SIDE * Config::COLUMNS / 4)];
    sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
  }
  const int row = rows.x + at / Config::COLUMNS;
  const int column = slice * Config::COLUMNS + at % Config::COLUMNS;
  if (row >= p.m) return;
  const float alpha = static_cast<float>(p.alpha);
  const float sums[4] = {alpha * sum.x, alpha * sum.y, alpha * sum.z, alpha * sum.w};
  Config::Output* const to = p.out + (head * p.m + row) * p.k + column;
  constexpr int BYTES = 4 * sizeof(Config::Output);
  const bool is_aligned = reinterpret_cast<unsigned long long>(to) % BYTES == 0;
  if (is_aligned && column + 4 <= p.k) {
    store_elements<BYTES>(to, sums, 4);
  } else {
    store_elements<sizeof(Config::Output)>(to, sums, p.k - column);
  }
}
