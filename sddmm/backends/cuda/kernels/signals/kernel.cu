// Signals between the GPUs of one host: words of 0 or 1 in memory that all of them reach. Unlike
// torch's put_signal and wait_signal, one launch serves all other ranks. Limit: the time in which a
// word travels to another GPU.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"
#include "gemm_core/ptx/signal.cuh"

using gemm_core::i64;

// What signals/host.py chooses, by macro.
struct Config {
  // The largest number of signals of a launch; each has a thread.
  static constexpr int MOST = SDDMM_MOST;
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
};

static_assert(Config::MOST <= Config::THREADS, "a thread for each signal");

struct Signals {
  int* at[Config::MOST];
};

struct Arguments {
  Signals signals;  // the first `count` of them
  i64 timeout_ns;   // after which a launch fails
  int count, is_put;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// Puts every signal, once whoever is told has taken the last one; or takes every signal, once it
// has come. What this GPU did before is seen by who takes a signal of it.
extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  namespace ptx = gemm_core::ptx;
  const int i = threadIdx.x;
  if (i >= p.count) return;
  int* const signal = p.signals.at[i];
  const i64 begin = ptx::globaltimer_ns();
  while (!(p.is_put ? ptx::try_put_signal(signal) : ptx::try_take_signal(signal)))
    if (ptx::globaltimer_ns() - begin > p.timeout_ns) ptx::trap();
}
