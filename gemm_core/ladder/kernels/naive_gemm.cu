// The first rung: one thread per element of C, operands straight from global memory, any strides. Adds
// nothing to the definition, and serves what no other kernel serves. Limit: its loads, two for every
// multiply-add.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"
#include "gemm_core/ptx/half2.cuh"

using namespace gemm_core;

// What the host defines (gemm_core/ladder/spec.py).
struct Config {
  using Element = GEMM_ELEMENT;                            // of A and B
  using Output = GEMM_OUTPUT;                              // of C
  using Accumulator = GEMM_ACCUMULATOR;                    // float or f16
  static constexpr int BLOCK_M = GEMM_BLOCK_M;             // rows of C per block
  static constexpr int BLOCK_N = GEMM_BLOCK_N;             // columns of C per block
  static constexpr int THREADS = GEMM_THREADS;             // per block, one for each element
  static constexpr bool B_ROWS_ARE_N = GEMM_B_ROWS_ARE_N;  // B is stored as n rows of k
};
static_assert(Config::THREADS == Config::BLOCK_M * Config::BLOCK_N, "one thread per element of C");

// A running sum in float, or in half.
template <class Accumulator>
struct Sum {
  float value = 0.f;
  template <class T>
  __device__ void add_product(T x, T y) {
    value = fmaf(Numeric<T>::to_float(x), Numeric<T>::to_float(y), value);
  }
  __device__ float to_float() const { return value; }
};
template <>
struct Sum<f16> {
  u32 value = 0;
  __device__ void add_product(f16 x, f16 y) { value = ptx::fma_f16x2(x.bits, y.bits, value); }
  __device__ float to_float() const { return Numeric<f16>::to_float(f16{static_cast<u16>(value)}); }
};

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    gemm(const Config::Element* __restrict__ a, const Config::Element* __restrict__ b,
         Config::Output* __restrict__ c, int m, int n, int k, i64 pitch_a, i64 pitch_b, i64 pitch_c) {
  const int tiles_n = (n + Config::BLOCK_N - 1) / Config::BLOCK_N;
  const int row = blockIdx.x / tiles_n * Config::BLOCK_M + threadIdx.x / Config::BLOCK_N;
  const int column = blockIdx.x % tiles_n * Config::BLOCK_N + threadIdx.x % Config::BLOCK_N;
  if (row >= m || column >= n) return;
  const i64 k_stride_b = Config::B_ROWS_ARE_N ? 1 : pitch_b;
  const Config::Element* row_a = a + row * pitch_a;
  const Config::Element* column_b = b + (Config::B_ROWS_ARE_N ? column * pitch_b : column);
  Sum<Config::Accumulator> sum;
  for (int i = 0; i < k; ++i) sum.add_product(row_a[i], column_b[i * k_stride_b]);
  c[row * pitch_c + column] = Numeric<Config::Output>::from_float(sum.to_float());
}
GEMM_CORE_CHECK_LIST(gemm)
