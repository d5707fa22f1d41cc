// Which element of a WMMA accumulator a lane holds, as this device has it: C = 32 row + column, for
// the three shapes one after the other, summed in floats and in halves. One warp. See wmma_layout.py.
#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/wmma.cuh"

using namespace gemm_core;

// To out[0 .. 255] from floats and out[256 .. 511] from halves, element by element of each lane.
template <int M, int N>
__device__ void probe_shape(f16* a, f16* b, float* out) {
  using Wmma = ptx::Wmma<M, N>;
  const int lane = threadIdx.x;
  for (int i = lane; i < 512; i += 32) {
    const int column_a = i % 16, row_b = i / N, column_b = i % N;
    const int value_a = column_a == 0 ? i / 16 : column_a == 1 ? 1 : 0;
    const int value_b = row_b == 0 ? 32 : row_b == 1 ? column_b : 0;
    a[i] = Numeric<f16>::from_float(static_cast<float>(value_a));
    b[i] = Numeric<f16>::from_float(static_cast<float>(value_b));
  }
  __syncthreads();
  u32 from_a[8], from_b[8];
  Wmma::load_a(from_a, ptx::shared_address(a), 16);
  Wmma::load_b_k_rows(from_b, ptx::shared_address(b), N);
  float floats[8] = {};
  u32 halves[4] = {};
  Wmma::multiply_k_rows(floats, from_a, from_b);
  Wmma::multiply_k_rows(halves, from_a, from_b);
  for (int i = 0; i < 8; ++i) {
    out[lane * 8 + i] = sum_of(floats, i);
    out[256 + lane * 8 + i] = sum_of(halves, i);
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(32) probe(float* out) {
  extern __shared__ __align__(128) unsigned char shared[];
  f16* a = reinterpret_cast<f16*>(shared);
  f16* b = a + 512;
  probe_shape<16, 16>(a, b, out);
  probe_shape<32, 8>(a, b, out + 512);
  probe_shape<8, 32>(a, b, out + 1024);
}
