// Host twin of gemm_core/ptx/block_index.cuh.
#pragma once

namespace gemm_core::ptx {

inline int block_index() { return blockIdx.x; }

}  // namespace gemm_core::ptx
