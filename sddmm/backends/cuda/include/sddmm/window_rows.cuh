// Slices of consecutive rows of an operand in shared memory.
#pragma once

#include "gemm_core/ptx/cp_async.cuh"
#include "sddmm/chunk.cuh"

namespace sddmm {

// Begins to load a slice of the first `count` rows into shared memory, one after the other, with zeros
// from element k on; they are there after cp_async_wait<0> and a barrier. All threads of the block take
// part. SLICE_BYTES: those of a slice. LOAD_BYTES, NO_TAIL: see load_chunk.
template <int SLICE_BYTES, int THREADS, int LOAD_BYTES, bool NO_TAIL, class T>
__device__ __forceinline__ void start_window(unsigned char* shared, const T* rows,
                                             gemm_core::i64 pitch, int k, int count) {
  constexpr int chunks = SLICE_BYTES / 16;
  for (int i = threadIdx.x; i < count * chunks; i += THREADS) {
    const int slot = i / chunks, first = i % chunks * CHUNK_ELEMENTS<T>;
    const T* row = rows + slot * pitch;
    if constexpr (LOAD_BYTES == 16) {
      const unsigned int target = gemm_core::ptx::shared_address(shared + i * 16);
      if constexpr (NO_TAIL) {
        gemm_core::ptx::cp_async_16(target, row + first);
      } else {
        gemm_core::ptx::cp_async_16(target, first < k ? row + first : rows, first < k ? 16 : 0);
      }
    } else {
      reinterpret_cast<Chunk*>(shared)[i] = load_chunk<LOAD_BYTES, NO_TAIL>(row, first, k);
    }
  }
  gemm_core::ptx::cp_async_commit();
}

}  // namespace sddmm
