// Stores rows of a slot whose nonzeros are contiguous: a whole warp per row, 16 aligned bytes per
// lane, without the columns of the nonzeros.
#pragma once

#include "sddmm/sampled_output.cuh"
#include "sddmm/staging_ring.cuh"
#include "sddmm/tile_rows.cuh"

namespace sddmm {

template <class Ring, class Rows, class Output>
struct TileSegments {
  using Staged = typename Ring::Element;
  using Result = typename Output::Result;
  // The number of results that a lane stores at once.
  static constexpr int VECTOR = 16 / sizeof(Result);

  struct alignas(16) Words {
    u32 x[4];
  };

  // Stores the warp's rows of the slot of a part of a group. n0: the tile's first column.
  static __device__ __forceinline__ void store(const Staged* slot, int warp, const Rows& rows,
                                               int group, int part, int n0, const Output& output) {
    // This lane's row: its nonzeros, and the column of the tile minus the number of a nonzero.
    const int row_begin = Rows::of_group(rows.begin, group);
    const int row_end = Rows::of_group(rows.end, group);
    const int row_to_column = Rows::of_group(rows.first_column, group) - n0 - row_begin;
    const int misaligned = static_cast<int>(reinterpret_cast<unsigned long long>(output.out) /
                                            sizeof(Result) % VECTOR);
#pragma unroll 2
    for (int row = 0; row < Rows::row_count(warp); ++row) {
      const int owner = Rows::owner(part, row);
      const int begin = __shfl_sync(FULL_MASK, row_begin, owner);
      const int end = __shfl_sync(FULL_MASK, row_end, owner);
      const int to_column = __shfl_sync(FULL_MASK, row_to_column, owner);
      // Vectors start at aligned addresses, so the first may start before the row does.
      int first = begin - (misaligned + begin) % VECTOR + threadIdx.x % 32 * VECTOR;
      if (begin == end) continue;  // it has no columns, which could be anywhere
#pragma unroll 1
      for (; first < end; first += 32 * VECTOR)
        store_vector(slot, Rows::first_row(warp) + row, first, begin, end, first + to_column, output);
    }
  }

 private:
  // Stores those of the VECTOR nonzeros from `first` on that are in begin .. end - 1. column: that
  // of the first, which may be before the tile.
  static __device__ __forceinline__ void store_vector(const Staged* slot, int row, int first,
                                                      int begin, int end, int column,
                                                      const Output& output) {
    const bool is_full = first >= begin && first + VECTOR <= end;
    if constexpr (Output::COPIES) {
      const Words words = load_words(slot, row, column);
      if (is_full) {
        *reinterpret_cast<Words*>(output.out + first) = words;
      } else {
#pragma unroll
        for (int i = 0; i < VECTOR; ++i)
          if (first + i >= begin && first + i < end) output.out[first + i] = element(words, i);
      }
    } else {
#pragma unroll
      for (int i = 0; i < VECTOR; ++i)
        if (first + i >= begin && first + i < end)
          output.out[first + i] = Output::result(slot[Ring::element(row, column + i)]);
    }
  }

  // The 16 bytes of a row from a column on, of which those outside the row are any: two aligned
  // vectors, shifted. `column` modulo VECTOR is the same in all lanes.
  static __device__ __forceinline__ Words load_words(const Staged* slot, int row, int column) {
    static_assert(sizeof(Staged) * VECTOR == 16 || !Output::COPIES, "");
    constexpr int LAST = Ring::ROW_COLUMNS - VECTOR;
    const int shift = column & (VECTOR - 1), low = column - shift, high = low + VECTOR;
    u32 words[8];
    load_vector(words, slot + Ring::element(row, low > 0 ? low : 0));
    load_vector(words + 4, slot + Ring::element(row, high < LAST ? high : LAST));
    const int bytes = shift * static_cast<int>(sizeof(Staged));
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = bytes & 8 ? words[i + 2] : words[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = bytes & 4 ? words[i + 1] : words[i];
    Words shifted;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      shifted.x[i] = static_cast<u32>((static_cast<unsigned long long>(words[i + 1]) << 32 | words[i]) >>
                                      8 * (bytes & 2));
    return shifted;
  }
  static __device__ __forceinline__ void load_vector(u32* words, const Staged* from) {
    const Words loaded = *reinterpret_cast<const Words*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = loaded.x[i];
  }
  static __device__ __forceinline__ Result element(const Words& words, int i) {
    if constexpr (sizeof(Result) == 2)
      return Result{static_cast<u16>(words.x[i / 2] >> 16 * (i % 2))};
    else
      return __uint_as_float(words.x[i]);
  }
};

}  // namespace sddmm
