// wgmma: matrix products of a warpgroup (128 threads), B in shared memory (sm_90a only).
#pragma once

#include "gemm_core/numeric.cuh"

namespace gemm_core::ptx {

// The descriptor of a tile of 128-byte rows under the 128-byte swizzle (swizzle.cuh: Swizzle<8>),
// with k along the rows and 1024 bytes between groups of eight rows. The tile starts at a multiple
// of 1024; `address` advances by 32 bytes per k step. Addresses in descriptors count 16 bytes.
__device__ __forceinline__ unsigned long long wgmma_descriptor(u32 address) {
  constexpr unsigned long long swizzle_128b = 1ull << 62, eight_rows = 1024 >> 4;
  return (address & 0x3ffff) >> 4 | 1ull << 16 | eight_rows << 32 | swizzle_128b;
}

// The descriptor of a tile of 16-bit elements with n along the rows: panels of 64 columns, each of
// `panel_bytes`, in which a row of 128 bytes is one k under the 128-byte swizzle. `address` advances
// by 2048 bytes per step of 16 k.
__device__ __forceinline__ unsigned long long wgmma_descriptor_rows_of_k(u32 address,
                                                                         u32 panel_bytes) {
  constexpr unsigned long long swizzle_128b = 1ull << 62, eight_rows = 1024 >> 4;
  const unsigned long long panel = panel_bytes >> 4;
  return (address & 0x3ffff) >> 4 | panel << 16 | eight_rows << 32 | swizzle_128b;
}

// Required before the first product and after ordinary instructions have accessed the accumulators.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most PENDING of the newest groups are still in flight.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Makes this thread's stores to shared memory visible to wgmma and TMA.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// d = A B + (accumulate ? d : 0): A 64 x 8 in registers and B 128 x 8 floats, of which the TF32
// bits are read. Fragments as in fragment.cuh: d as wgmma_d, the sixteen rows of A of each warp as
// mma_tf32_a. The registers of `a` must not change until a wait.
__device__ __forceinline__ void wgmma_m64n128k8_tf32(float (&d)[64], const u32 (&a)[4],
                                                     unsigned long long b, bool accumulate) {
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %69, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<u32>(accumulate)));
}

}  // namespace gemm_core::ptx
