// Enough of CUDA to run the real kernel sources on a CPU: one fiber per thread of a block. Blocks
// run one after the other, those of a cluster together. Fibers wait for each other at warp-wide
// instructions and barriers. This checks indices, guards, tails and fragment layouts; it cannot
// show races.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __shared__
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)

struct Index {
  unsigned x, y, z;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float __uint_as_float(unsigned u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline unsigned __float_as_uint(float f) {
  unsigned u;
  std::memcpy(&u, &f, 4);
  return u;
}

inline double __hiloint2double(int high, int low) {
  const unsigned long long bits = (unsigned long long)(unsigned)high << 32 | (unsigned)low;
  double d;
  std::memcpy(&d, &bits, 8);
  return d;
}

inline Index threadIdx, blockIdx, gridDim;
alignas(1024) inline unsigned char shared[232448];

namespace emulation {

constexpr int warp_size = 32;
constexpr std::size_t stack_bytes = 1 << 17;

struct Fiber {
  ucontext_t context;
  void* stack;  // uninitialised, so that its pages take memory only once they are used
  bool done = false;
};

inline std::vector<Fiber> fibers;
inline ucontext_t scheduler;
inline int current, running;
// What every fiber runs: body(kernel). No std::function, which takes long to compile.
inline void (*body)(const void* kernel);
inline const void* kernel_of_body;

// The number of blocks of a cluster; set before `run`.
inline int cluster_blocks = 1;
// Shared memory of the cluster's blocks. That of the block whose fibers run is in `shared`.
inline std::vector<std::vector<unsigned char>> saved_shared;
inline int rank() { return int(blockIdx.x) % cluster_blocks; }
inline unsigned char* shared_of(int block) {
  return block == rank() ? shared : saved_shared[block].data();
}
inline void switch_to_block(unsigned block) {
  if (blockIdx.x == block) return;
  std::memcpy(saved_shared[rank()].data(), shared, sizeof(shared));
  blockIdx = {block, 0, 0};
  std::memcpy(shared, saved_shared[rank()].data(), sizeof(shared));
}

inline void yield() {
  const int self = current;
  swapcontext(&fibers[self].context, &scheduler);
}

// A barrier of `size` fibers: each waits until all have arrived.
struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
  void arrive(int size) {
    if (++arrived < size) return;
    arrived = 0;
    ++generation;
  }
  void wait(int size) {
    const unsigned arrival = generation;
    arrive(size);
    while (generation == arrival) yield();
  }
};
inline Barrier cluster_barrier;
inline std::vector<Barrier> block_barriers, warp_barriers;

// The values that the lanes of a warp exchange in a warp-wide instruction.
template <class T>
struct Exchange {
  T lanes[warp_size];
};
template <class T>
inline std::vector<Exchange<T>>& exchanges() {
  static std::vector<Exchange<T>> all(2 * warp_size);
  return all;
}

// Publishes this lane's value and calls use(values of all lanes, lane) before any lane continues.
template <class T, class Use>
inline void with_warp(const T& value, Use use) {
  const int warp = current / warp_size, self = threadIdx.x;
  exchanges<T>()[warp].lanes[self % warp_size] = value;
  warp_barriers[warp].wait(warp_size);
  use(exchanges<T>()[warp].lanes, self % warp_size);
  warp_barriers[warp].wait(warp_size);
}

inline void entry() {
  body(kernel_of_body);
  fibers[current].done = true;
  --running;
}

template <class Kernel>
void run(int blocks, int threads, const Kernel& kernel) {
  body = [](const void* called) { (*static_cast<const Kernel*>(called))(); };
  kernel_of_body = &kernel;
  gridDim = {unsigned(blocks), 0, 0};
  fibers.resize(cluster_blocks * threads);
  for (auto& fiber : fibers) fiber.stack = std::malloc(stack_bytes);
  for (int first = 0; first < blocks; first += cluster_blocks) {
    // Poison: shared memory that a kernel did not write must not look like a number.
    std::memset(shared, 0xff, sizeof(shared));
    saved_shared.assign(cluster_blocks, std::vector<unsigned char>(sizeof(shared), 0xff));
    blockIdx = {unsigned(first), 0, 0};
    cluster_barrier = {};
    block_barriers.assign(cluster_blocks, {});
    warp_barriers.assign((fibers.size() + warp_size - 1) / warp_size, {});
    running = int(fibers.size());
    for (auto& fiber : fibers) {
      fiber.done = false;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack;
      fiber.context.uc_stack.ss_size = stack_bytes;
      fiber.context.uc_link = &scheduler;
      makecontext(&fiber.context, entry, 0);
    }
    while (running > 0) {
      for (current = 0; current < int(fibers.size()); ++current) {
        if (fibers[current].done) continue;
        switch_to_block(unsigned(first + current / threads));
        threadIdx = {unsigned(current % threads), 0, 0};
        swapcontext(&scheduler, &fibers[current].context);
      }
    }
  }
  // A process may keep hundreds of compiled kernels, each with these variables of its own.
  for (auto& fiber : fibers) std::free(fiber.stack);
  fibers = {};
  saved_shared = {};
}

}  // namespace emulation

inline void __syncthreads() {
  emulation::block_barriers[emulation::rank()].wait(int(emulation::fibers.size()) / emulation::cluster_blocks);
}
inline void __syncwarp() { emulation::with_warp(0, [](const int*, int) {}); }

// Every lane of the warp takes part in these.
template <class T>
inline T __shfl_sync(unsigned, T value, int lane) {
  T got;
  emulation::with_warp(value, [&](const T* all, int) { got = all[lane % emulation::warp_size]; });
  return got;
}
template <class T>
inline T __shfl_xor_sync(unsigned, T value, int mask) {
  return __shfl_sync(0u, value, int(threadIdx.x % emulation::warp_size) ^ mask);
}
template <class T>
inline T __shfl_up_sync(unsigned, T value, int apart) {
  const int lane = int(threadIdx.x % emulation::warp_size);
  return __shfl_sync(0u, value, lane < apart ? lane : lane - apart);
}
// The low word of the double word {high, low} >> shift.
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((unsigned long long)high << 32 | low) >> shift % 32);
}
// Four bytes of the double word {high, low}: byte i is the one that hexadecimal digit i names.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  unsigned bytes = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned digit = selector >> 4 * i & 7;
    bytes |= ((digit < 4 ? low >> 8 * digit : high >> 8 * (digit - 4)) & 0xff) << 8 * i;
  }
  return bytes;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline int __ffs(unsigned bits) { return __builtin_ffs(int(bits)); }
template <class T, class U>
inline T atomicAdd(T* at, U value) {
  const T before = *at;
  *at += value;
  return before;
}
template <class T>
inline void atomicOr(T* at, T value) {
  *at |= value;
}
template <class T>
inline T atomicExch(T* at, T value) {
  const T before = *at;
  *at = value;
  return before;
}
template <class T>
inline void atomicMax(T* at, T value) {
  if (value > *at) *at = value;
}
inline void __threadfence() {}
inline void __threadfence_system() {}
inline unsigned __ballot_sync(unsigned, bool value) {
  unsigned bits = 0;
  emulation::with_warp(value, [&](const bool* all, int) {
    for (int i = 0; i < emulation::warp_size; ++i) bits |= unsigned(all[i]) << i;
  });
  return bits;
}
inline bool __all_sync(unsigned, bool value) {
  bool all_true = true;
  emulation::with_warp(value, [&](const bool* all, int) {
    for (int i = 0; i < emulation::warp_size; ++i) all_true = all_true && all[i];
  });
  return all_true;
}
inline bool __any_sync(unsigned, bool value) {
  return !__all_sync(0u, !value);
}
