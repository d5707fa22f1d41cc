// Of the tiles' counts: how many are not empty, how many hold enough, and what these hold. Limit: the
// bytes of the counts.
#include "gemm_core/numeric.cuh"

struct Arguments {
  const int* counts;
  unsigned long long* totals;  // three, zeros before
  int tiles, least;
};

extern "C" __global__ void __launch_bounds__(256) sddmm_kernel(const Arguments p) {
  unsigned long long filled = 0, worth = 0, held = 0;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < p.tiles; i += SDDMM_BLOCKS * 256) {
    const int count = p.counts[i];
    filled += count > 0;
    if (count >= p.least) ++worth, held += count;
  }
  for (int apart = 16; apart > 0; apart /= 2) {
    filled += __shfl_xor_sync(0xffffffff, filled, apart);
    worth += __shfl_xor_sync(0xffffffff, worth, apart);
    held += __shfl_xor_sync(0xffffffff, held, apart);
  }
  if (threadIdx.x % 32 == 0 && filled > 0) {
    atomicAdd(p.totals, filled);
    atomicAdd(p.totals + 1, worth);
    atomicAdd(p.totals + 2, held);
  }
}
