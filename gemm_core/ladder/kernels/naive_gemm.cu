// The first rung: one thread per element of C, operands straight from global memory, any strides.
// Adds nothing to the definition; limited by its loads, two for every multiply-add. Serves what no
// other kernel does.
#include "gemm_core/numeric.cuh"
#include "gemm_core/ptx/half2.cuh"

using namespace gemm_core;

// The running sum, in floats or in halves.
template <class ACC>
struct Sum {
  float value = 0.f;
  template <class T>
  __device__ void add(T x, T y) {
    value = fmaf(Numeric<T>::to_float(x), Numeric<T>::to_float(y), value);
  }
  __device__ float result() const { return value; }
};
template <>
struct Sum<f16> {
  u32 value = 0;
  __device__ void add(f16 x, f16 y) { value = ptx::fma_f16x2(x.bits, y.bits, value); }
  __device__ float result() const { return Numeric<f16>::to_float(f16{static_cast<u16>(value)}); }
};

extern "C" __global__ void __launch_bounds__(GEMM_THREADS)
    gemm(const GEMM_ELEMENT* __restrict__ a, const GEMM_ELEMENT* __restrict__ b,
         GEMM_OUTPUT* __restrict__ c, int m, int n, int k, i64 pitch_a, i64 pitch_b, i64 pitch_c) {
  const int tiles_n = (n + GEMM_BLOCK_N - 1) / GEMM_BLOCK_N;
  const int row = blockIdx.x / tiles_n * GEMM_BLOCK_M + threadIdx.x / GEMM_BLOCK_N;
  const int column = blockIdx.x % tiles_n * GEMM_BLOCK_N + threadIdx.x % GEMM_BLOCK_N;
  if (row >= m || column >= n) return;
  const i64 step_b = GEMM_B_ROWS_ARE_N ? 1 : pitch_b;
  const GEMM_ELEMENT* from_a = a + row * pitch_a;
  const GEMM_ELEMENT* from_b = b + (GEMM_B_ROWS_ARE_N ? column * pitch_b : column);
  Sum<GEMM_ACCUMULATOR> sum;
  for (int i = 0; i < k; ++i) sum.add(from_a[i], from_b[i * step_b]);
  c[row * pitch_c + column] = Numeric<GEMM_OUTPUT>::from_float(sum.result());
}
