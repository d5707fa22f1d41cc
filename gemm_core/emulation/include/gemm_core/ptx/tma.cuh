// Host twin of gemm_core/ptx/tma.cuh: gemm_core/emulation/kernel.py packs the map.
#pragma once

#include "gemm_core/ptx/mbarrier.cuh"

namespace gemm_core::ptx {

struct alignas(64) TensorMap {
  unsigned char* first;
  long long sizes[3], strides[2];  // elements; bytes
  int box_columns, box_rows, element;
  unsigned char unused[128 - 60];
};
static_assert(sizeof(TensorMap) == 128, "");

inline void prefetch_map(const TensorMap&) {}

inline void tma_load_to(unsigned char* memory, unsigned target, const TensorMap& map, int x, int y,
                        int z, unsigned barrier) {
  const int row_bytes = map.box_columns * map.element;
  if (target % 1024 || row_bytes != 128 || target + map.box_rows * 128 > sizeof(shared)) std::abort();
  for (int row = 0; row < map.box_rows; ++row)
    for (int column = 0; column < map.box_columns; ++column) {
      const unsigned byte = target + row * 128 + column * map.element;
      unsigned char* to = memory + (byte ^ (byte >> 7 & 7) << 4);
      std::memset(to, 0, map.element);
      if (x + column < map.sizes[0] && y + row < map.sizes[1] && z < map.sizes[2])
        std::memcpy(to,
                    map.first + z * map.strides[1] + (y + row) * map.strides[0] +
                        (long long)(x + column) * map.element,
                    map.element);
    }
  Mbarrier& b = mbarrier_at(barrier, memory);
  b.bytes -= map.box_rows * 128;
  mbarrier_complete(b);
}
inline void tma_load(unsigned target, const TensorMap& map, int x, int y, int z, unsigned barrier) {
  tma_load_to(shared, target, map, x, y, z, barrier);
}
template <int BLOCKS>
inline void tma_load_multicast(unsigned target, const TensorMap& map, int x, int y, int z,
                               unsigned barrier) {
  for (int block = 0; block < BLOCKS; ++block)
    tma_load_to(emulation::shared_of(block), target, map, x, y, z, barrier);
}

// Like the hardware, it stores 16 bytes at a time, also past the end of a row.
inline void tma_store(const TensorMap& map, int x, int y, int z, unsigned source) {
  if (source % 1024 || source + map.box_rows * 128 > sizeof(shared)) std::abort();
  for (int row = 0; row < map.box_rows; ++row)
    for (int chunk = 0; chunk < 128; chunk += 16) {
      const unsigned byte = source + row * 128 + chunk;
      const long long column = x + chunk / map.element;
      if (column < map.sizes[0] && y + row < map.sizes[1] && z < map.sizes[2])
        std::memcpy(map.first + z * map.strides[1] + (y + row) * map.strides[0] +
                        column * map.element,
                    shared + (byte ^ (byte >> 7 & 7) << 4), 16);
    }
}
inline void tma_store_commit() {}
template <int PENDING>
inline void tma_store_wait_read() {}

}  // namespace gemm_core::ptx
