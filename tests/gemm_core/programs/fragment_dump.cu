// What a warp holds after each tensor-core instruction, for comparison with fragments.py.
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/ldmatrix.cuh"
#include "gemm_core/ptx/mma.cuh"

using namespace gemm_core;

// tile: 32 x 8 halves. out: 8 halves a lane by ldmatrix.x4, then the same with .trans.
extern "C" __global__ void dump_ldmatrix(const u16* tile, u32* out) {
  extern __shared__ __align__(128) unsigned char shared[];
  for (int i = threadIdx.x; i < 256; i += 32) reinterpret_cast<u16*>(shared)[i] = tile[i];
  __syncthreads();
  u32 plain[4], transposed[4];
  ptx::ldmatrix_x4(plain, ptx::shared_address(shared + 16 * threadIdx.x));
  ptx::ldmatrix_x4_trans(transposed, ptx::shared_address(shared + 16 * threadIdx.x));
  for (int i = 0; i < 4; ++i) {
    out[threadIdx.x * 4 + i] = plain[i];
    out[128 + threadIdx.x * 4 + i] = transposed[i];
  }
}

// a: 4 words a lane, b: 2, c: 4 floats.
template <class Multiply>
__device__ void dump_mma(const u32* a, const u32* b, float* c, Multiply multiply) {
  u32 from_a[4];
  float sums[4] = {};
  for (int i = 0; i < 4; ++i) from_a[i] = a[threadIdx.x * 4 + i];
  multiply(sums, from_a, b[threadIdx.x * 2], b[threadIdx.x * 2 + 1]);
  for (int i = 0; i < 4; ++i) c[threadIdx.x * 4 + i] = sums[i];
}

extern "C" __global__ void dump_mma_f16(const u32* a, const u32* b, float* c) {
  dump_mma(a, b, c, [](float (&d)[4], const u32 (&x)[4], u32 y0, u32 y1) {
    ptx::mma_m16n8k16(d, x, y0, y1, f16{});
  });
}

extern "C" __global__ void dump_mma_bf16(const u32* a, const u32* b, float* c) {
  dump_mma(a, b, c, [](float (&d)[4], const u32 (&x)[4], u32 y0, u32 y1) {
    ptx::mma_m16n8k16(d, x, y0, y1, bf16{});
  });
}

extern "C" __global__ void dump_mma_tf32(const u32* a, const u32* b, float* c) {
  dump_mma(a, b, c, [](float (&d)[4], const u32 (&x)[4], u32 y0, u32 y1) {
    ptx::mma_m16n8k8_tf32(d, x, y0, y1);
  });
}
