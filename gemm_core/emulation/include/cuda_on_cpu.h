// Enough of CUDA to run the real kernel sources on a CPU: one fiber per thread of a block. Blocks
// run one after the other, those of a cluster together. Fibers wait for each other at warp-wide
// instructions and barriers. This checks indices, guards, tails and fragment layouts; it cannot
// show races.
#pragma once

#include <ucontext.h>

#include <cstdlib>
#include <cstring>

// C's mathematical functions, which CUDA has too. To read <cmath> takes g++ a quarter of a second.
extern "C" {
#define UNARY(name) double name(double) noexcept; float name##f(float) noexcept;
#define BINARY(name) double name(double, double) noexcept; float name##f(float, float) noexcept;
UNARY(acos) UNARY(acosh) UNARY(asin) UNARY(asinh) UNARY(atan) UNARY(atanh) UNARY(cbrt) UNARY(ceil)
UNARY(cos) UNARY(cosh) UNARY(erf) UNARY(erfc) UNARY(exp) UNARY(exp2) UNARY(expm1) UNARY(fabs)
UNARY(floor) UNARY(log) UNARY(log10) UNARY(log1p) UNARY(log2) UNARY(nearbyint) UNARY(rint)
UNARY(round) UNARY(sin) UNARY(sinh) UNARY(sqrt) UNARY(tan) UNARY(tanh) UNARY(trunc)
BINARY(atan2) BINARY(copysign) BINARY(fdim) BINARY(fmax) BINARY(fmin) BINARY(fmod) BINARY(hypot)
BINARY(pow) BINARY(remainder)
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
double ldexp(double, int) noexcept;
float ldexpf(float, int) noexcept;
#undef UNARY
#undef BINARY
}

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
constexpr int max_cluster_blocks = 8, max_warps = 64;

// Where a fiber or the scheduler continues. The compiler's own jumps may leave a stack for another;
// under _FORTIFY_SOURCE, which some g++ set by themselves, longjmp of <setjmp.h> may not.
using Position = void* [5];

struct Fiber {
  Position position;
  void* stack;  // uninitialised, so that its pages take memory only once they are used
  bool started, done;
};

inline Fiber* fibers;
inline int fiber_count;  // of all blocks of the cluster
inline Position scheduler;
inline int current, running;
// What every fiber runs: body(kernel). No std::function, which takes long to compile.
inline void (*body)(const void* kernel);
inline const void* kernel_of_body;

// The number of blocks of a cluster; set before `run`.
inline int cluster_blocks = 1;
// Shared memory of the cluster's blocks. That of the block whose fibers run is in `shared`.
inline unsigned char (*saved_shared)[sizeof(shared)];
inline int rank() { return int(blockIdx.x) % cluster_blocks; }
inline unsigned char* shared_of(int block) {
  return block == rank() ? shared : saved_shared[block];
}
inline void switch_to_block(unsigned block) {
  if (blockIdx.x == block) return;
  std::memcpy(saved_shared[rank()], shared, sizeof(shared));
  blockIdx = {block, 0, 0};
  std::memcpy(shared, saved_shared[rank()], sizeof(shared));
}

// Not inlined: a function that sets a position may not contain a jump to it.
[[gnu::noinline, noreturn]] inline void jump(Position& to) { __builtin_longjmp(to, 1); }

// Continues with the next fiber.
[[gnu::noinline]] inline void yield() {
  if (!__builtin_setjmp(fibers[current].position)) jump(scheduler);
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
inline Barrier block_barriers[max_cluster_blocks], warp_barriers[max_warps];

// The values that the lanes of a warp exchange in a warp-wide instruction.
template <class T>
struct Exchange {
  T lanes[warp_size];
};
template <class T>
inline Exchange<T>* exchanges() {
  static Exchange<T> all[max_warps];
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
  jump(scheduler);
}

// Runs the current fiber until it yields or ends. Jumps need no system call, as swapcontext does.
[[gnu::noinline]] inline void resume() {
  Fiber& fiber = fibers[current];
  if (__builtin_setjmp(scheduler)) return;
  if (fiber.started) jump(fiber.position);
  fiber.started = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_link = nullptr;  // `entry` does not return
  context.uc_stack.ss_sp = fiber.stack;
  context.uc_stack.ss_size = stack_bytes;
  makecontext(&context, entry, 0);
  setcontext(&context);
}

inline void run_cluster(int first, int threads) {
  // Poison: shared memory that a kernel did not write must not look like a number.
  std::memset(shared, 0xff, sizeof(shared));
  if (cluster_blocks > 1) std::memset(saved_shared, 0xff, cluster_blocks * sizeof(shared));
  blockIdx = {unsigned(first), 0, 0};
  cluster_barrier = {};
  for (Barrier& barrier : block_barriers) barrier = {};
  for (Barrier& barrier : warp_barriers) barrier = {};
  for (int i = 0; i < fiber_count; ++i) fibers[i].started = fibers[i].done = false;
  for (running = fiber_count; running > 0;) {
    for (current = 0; current < fiber_count; ++current) {
      if (fibers[current].done) continue;
      switch_to_block(unsigned(first + current / threads));
      threadIdx = {unsigned(current % threads), 0, 0};
      resume();
    }
  }
}

template <class Kernel>
void run(int blocks, int threads, const Kernel& kernel) {
  body = [](const void* called) { (*static_cast<const Kernel*>(called))(); };
  kernel_of_body = &kernel;
  gridDim = {unsigned(blocks), 0, 0};
  fiber_count = cluster_blocks * threads;
  if (cluster_blocks > max_cluster_blocks || fiber_count > warp_size * max_warps) std::abort();
  fibers = static_cast<Fiber*>(std::malloc(fiber_count * sizeof(Fiber)));
  saved_shared = static_cast<decltype(saved_shared)>(std::malloc(cluster_blocks * sizeof(shared)));
  for (int i = 0; i < fiber_count; ++i) fibers[i].stack = std::malloc(stack_bytes);
  for (int first = 0; first < blocks; first += cluster_blocks) run_cluster(first, threads);
  // A process may keep hundreds of compiled kernels, each with these variables of its own.
  for (int i = 0; i < fiber_count; ++i) std::free(fibers[i].stack);
  std::free(fibers);
  std::free(saved_shared);
}

}  // namespace emulation

inline void __syncthreads() {
  emulation::block_barriers[emulation::rank()].wait(emulation::fiber_count / emulation::cluster_blocks);
}
inline void __syncwarp() { emulation::with_warp(0, [](const int*, int) {}); }

// Every lane of the warp takes part in these. width: the lanes of a segment, in which `lane` counts.
template <class T>
inline T __shfl_sync(unsigned, T value, int lane, int width = emulation::warp_size) {
  const int own = int(threadIdx.x % emulation::warp_size), from = own - own % width + lane % width;
  T got;
  emulation::with_warp(value, [&](const T* all, int) { got = all[from]; });
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
template <class T>
inline T __ldcs(const T* from) {
  return *from;
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
