// A re-implementation of isratnisa's SM-L2 kernel (Nisa et al., HiPC 2018) from a description: a block
// keeps one panel of active rows of A in shared memory, one slice of k at a time, and reads B through
// L2; two threads share a nonzero. A k that is no multiple of the slice is right here, unlike there.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"

using gemm_core::i64;

struct Arguments {
  const float *a, *b;
  float* out;
  const int* local_row;    // row of each nonzero in its tile's list of active rows
  const int* cols;         // column of each nonzero
  const int* position;     // where the value of each nonzero is stored
  const int* active_rows;  // the rows of this tile that have nonzeros
  const int* panel_begin;  // panel p has the nonzeros panel_begin[p] .. panel_begin[p + 1]
  int active, k, k0;       // number of active rows; inner dimension; first k of this slice
  int add;                 // whether to add to the sums of earlier slices
};

GEMM_CORE_CHECK_STRUCT(Arguments)

// The number of active rows of a panel, of values of k in a slice, and of threads in a block. The
// rows of a panel fill 6144 floats of shared memory.
constexpr int HEIGHT = ISRATNISA_HEIGHT, SLICE = 6144 / HEIGHT, THREADS = 512;

extern "C" __global__ void __launch_bounds__(THREADS) sm_l2(const Arguments p) {
  __shared__ __align__(16) float rows[HEIGHT][SLICE];
  const int width = p.k - p.k0 < SLICE ? p.k - p.k0 : SLICE;
  const int first = blockIdx.x * HEIGHT;
  for (int r = threadIdx.x / 32; r < HEIGHT && first + r < p.active; r += THREADS / 32) {
    const float* from = p.a + static_cast<i64>(p.active_rows[first + r]) * p.k + p.k0;
    for (int i = threadIdx.x % 32; i < SLICE; i += 32) rows[r][i] = i < width ? from[i] : 0.f;
  }
  __syncthreads();
  const int side = threadIdx.x % 2, end = p.panel_begin[blockIdx.x + 1];
  const bool vectors = p.k % 4 == 0 && width == SLICE;
  // Every thread runs every iteration, so that the whole warp reaches the shuffle.
  const int begin = p.panel_begin[blockIdx.x];
  for (int base = begin; base < end; base += THREADS / 2) {
    const int nonzero = base + threadIdx.x / 2;
    float sum = 0.f, other = 0.f;
    if (nonzero < end) {
      const float* a = rows[p.local_row[nonzero] - first] + side * SLICE / 2;
      const int start = side * SLICE / 2;
      const float* b = p.b + static_cast<i64>(p.cols[nonzero]) * p.k + p.k0 + start;
      if (vectors) {
#pragma unroll 2
        for (int i = 0; i < SLICE / 2; i += 8) {
          const float4 a0 = *reinterpret_cast<const float4*>(a + i);
          const float4 a1 = *reinterpret_cast<const float4*>(a + i + 4);
          const float4 b0 = *reinterpret_cast<const float4*>(b + i);
          const float4 b1 = *reinterpret_cast<const float4*>(b + i + 4);
          sum += a0.x * b0.x + a0.y * b0.y + a0.z * b0.z + a0.w * b0.w;
          other += a1.x * b1.x + a1.y * b1.y + a1.z * b1.z + a1.w * b1.w;
        }
      } else {
        for (int i = 0; i < SLICE / 2 && start + i < width; ++i) sum += a[i] * b[i];
      }
    }
    sum += other;
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    if (nonzero < end && side == 0) {
      float* to = p.out + p.position[nonzero];
      *to = p.add ? *to + sum : sum;
    }
  }
}
