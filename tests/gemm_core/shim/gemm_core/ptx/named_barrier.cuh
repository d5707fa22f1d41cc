// Host twin of gemm_core/ptx/named_barrier.cuh.
#pragma once

namespace gemm_core::ptx {

inline void named_barrier(int index, int threads) { shim::named_barriers[index].wait(threads); }

}  // namespace gemm_core::ptx
