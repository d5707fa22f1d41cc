// Shows which element of a WMMA accumulator each lane holds on this device: C = 32 row + column, for
// the three shapes in turn, summed in float and in half. One warp. See wmma_layout.py.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/wmma.cuh"

using namespace gemm_core;

// What the host defines (gemm_core/ladder/wmma_layout.py).
struct Config {
  static constexpr int SHARED_BYTES = GEMM_SHARED_BYTES;  // dynamic, per block
};

constexpr int OPERAND_ELEMENTS = 512;  // 32 x 16, the largest operand
static_assert(Config::SHARED_BYTES == 2 * OPERAND_ELEMENTS * sizeof(f16), "");

// Writes the accumulators of one shape: out[0 .. 255] summed in float and out[256 .. 511] in half,
// eight elements for each lane.
template <int M, int N>
__device__ void probe_shape(f16* a, f16* b, float* out) {
  using Wmma = ptx::Wmma<M, N>;
  const int lane = threadIdx.x;
  for (int i = lane; i < OPERAND_ELEMENTS; i += 32) {
    const int column_a = i % 16, row_b = i / N, column_b = i % N;
    const int value_a = column_a == 0 ? i / 16 : column_a == 1 ? 1 : 0;
    const int value_b = row_b == 0 ? 32 : row_b == 1 ? column_b : 0;
    a[i] = Numeric<f16>::from_float(static_cast<float>(value_a));
    b[i] = Numeric<f16>::from_float(static_cast<float>(value_b));
  }
  __syncthreads();
  u32 fragment_a[8], fragment_b[8];
  Wmma::load_a(fragment_a, ptx::shared_address(a), 16);
  Wmma::load_b_k_rows(fragment_b, ptx::shared_address(b), N);
  float floats[8] = {};
  u32 halves[4] = {};
  Wmma::multiply_k_rows(floats, fragment_a, fragment_b);
  Wmma::multiply_k_rows(halves, fragment_a, fragment_b);
  for (int i = 0; i < 8; ++i) {
    out[lane * 8 + i] = sum_of(floats, i);
    out[256 + lane * 8 + i] = sum_of(halves, i);
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(32) probe(float* out) {
  extern __shared__ __align__(128) unsigned char shared[];
  f16* a = reinterpret_cast<f16*>(shared);
  f16* b = a + OPERAND_ELEMENTS;
  probe_shape<16, 16>(a, b, out);
  probe_shape<32, 8>(a, b, out + 512);
  probe_shape<8, 32>(a, b, out + 1024);
}
GEMM_CORE_CHECK_LIST(probe)
