// SDDMM by gathering: each warp takes equally many nonzeros, loads their rows of A and of B by 16
// bytes a lane, and keeps a row of A in registers while it stays the same. Any pattern, in any
// order, without preparation. Limit: the bytes of B's rows, one row per nonzero, out of L2.
#include "gemm_core/parameters.cuh"
#include "sddmm/gather.cuh"
#include "sddmm/gather_arguments.cuh"

using namespace sddmm;

// What row_gather/host.py chooses, by macro.
struct Config {
  // The types of the operands and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of bytes of one load; all rows start and end at multiples of it: 2, 4, 8, or 16 where
  // a lane's chunk has 16.
  static constexpr int LOAD_BYTES = SDDMM_LOAD_BYTES;
  // The number of bytes of a row that the lanes of a nonzero load in one pass.
  static constexpr int PASS_BYTES = SDDMM_PASS_BYTES;
  // Whether one pass loads a whole row.
  static constexpr bool ONE_PASS = SDDMM_ONE_PASS;
  // Whether rows end where a pass ends, so that no load needs a guard.
  static constexpr bool NO_TAIL = SDDMM_NO_TAIL;
  // The number of lanes that load a row, and of batches that a warp works on at once, each of as many
  // nonzeros as it has such lanes.
  static constexpr int LANES = SDDMM_LANES, BATCHES = SDDMM_BATCHES;
  // Whether odd nonzeros load the halves of 128 bytes in the opposite order.
  static constexpr bool SWAPPED = SDDMM_SWAPPED;
  // The number of threads of a block, and of blocks that the registers of a multiprocessor must
  // hold.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
};

using Element = Config::Element;
constexpr int CHUNK_BYTES = CHUNK_BYTES_OF<Config::LANES, Config::PASS_BYTES>;
using Rows = ClampedRows<Element, Config::LOAD_BYTES, Config::NO_TAIL, CHUNK_BYTES>;

using Arguments = GatherArguments<Element, Config::Output>;
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  const i64 warp = static_cast<i64>(blockIdx.x) * (Config::THREADS / 32) + threadIdx.x / 32;
  const i64 head = p.head_of(warp), begin = p.begin_of(warp, head);
  if (head >= p.heads) return;
  const i64 end = p.end_of(begin);

  const Result<Element, Config::Output> result = p.result_of(head);
  gather<Element, Config::LANES, Config::BATCHES, Config::PASS_BYTES, Config::ONE_PASS,
         Config::SWAPPED>(
      Rows{{p.a + head * p.head_a, p.pitch_a, p.k}, p.m - 1},
      Rows{{p.b + head * p.head_b, p.pitch_b, p.k}, p.n - 1},
      p.rows, p.cols, p.perm, begin, end, GROUP_NONZEROS<Config::LANES, Config::BATCHES>, p.k,
      [&](i64 position) { result.prefetch(position); },
      [&](i64 position, Sum<Element> sum) {
        if (p.partial_sums != nullptr) sum += p.partial_sums[head * p.head_out + position];
        result.store(position, sum);
      });
}
