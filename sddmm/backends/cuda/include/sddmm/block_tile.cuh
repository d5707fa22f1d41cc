// What the kernels of block patterns share: their parameters, which part of which block a tile is,
// and the store of its sums. The position of a sum follows from its place in the block: no index of
// a nonzero is read.
#pragma once

#include "gemm_core/parameters.cuh"
#include "gemm_core/ptx/st_global.cuh"
#include "sddmm/value.cuh"

namespace sddmm {

template <class T, class OUT>
struct BlockArguments {
  const T *a, *b, *values;  // a is (m, k); b is (n, k); values may be null
  OUT* out;
  const int *rows, *cols;        // (block_count,): the block row and the block column of each block
  i64 pitch_a, pitch_b;          // elements from row to row
  i64 head_a, head_b, head_out;  // elements from head to head
  i64 tile_count;                // of all blocks and heads
  int block_count, block_m, block_n;  // blocks of a head; rows and columns of each
  int tiles_down, tiles_across;       // tiles that cover a block
  int k;
  double alpha;
};

// One TILE_M x TILE_N tile of a block: its head, where it starts in the matrix and in its block,
// how many of its rows and columns exist, and the position of its first sum in the output.
template <int TILE_M, int TILE_N>
struct BlockTile {
  int head, m0, n0, rows, columns;
  i64 position;

  // Tiles are numbered head by head, block by block, and row by row within a block.
  template <class Arguments>
  __device__ __forceinline__ BlockTile(const Arguments& p, int tile) {
    int top = 0, left = 0, block = tile;
    if (p.tiles_down * p.tiles_across > 1) {
      const int row_of_tiles = tile / p.tiles_across;
      left = (tile - row_of_tiles * p.tiles_across) * TILE_N;
      block = row_of_tiles / p.tiles_down;
      top = (row_of_tiles - block * p.tiles_down) * TILE_M;
    }
    head = block / p.block_count;
    const int index = block - head * p.block_count;
    m0 = p.rows[index] * p.block_m + top;
    n0 = p.cols[index] * p.block_n + left;
    rows = p.block_m - top < TILE_M ? p.block_m - top : TILE_M;
    columns = p.block_n - left < TILE_N ? p.block_n - left : TILE_N;
    position = (static_cast<i64>(index) * p.block_m + top) * p.block_n + left;
  }
};

// Loads COUNT 32-bit words at once.
template <int COUNT>
__device__ __forceinline__ void load_words(u32 (&words)[COUNT], const void* from) {
  if constexpr (COUNT == 1) {
    words[0] = *static_cast<const u32*>(from);
  } else if constexpr (COUNT == 2) {
    const auto loaded = *static_cast<const unsigned long long*>(from);
    words[0] = static_cast<u32>(loaded), words[1] = static_cast<u32>(loaded >> 32);
  } else {
    const uint4 loaded = *static_cast<const uint4*>(from);
    words[0] = loaded.x, words[1] = loaded.y, words[2] = loaded.z, words[3] = loaded.w;
  }
}

// Stores the sums of a tile, WIDTH neighbours of a row at once where all of them are aligned.
template <class T, class OUT, int WIDTH>
struct BlockStore {
  OUT* out;         // of the tile's first sum
  const T* values;  // likewise; may be null
  i64 pitch;        // positions from row to row
  int rows, columns;
  Sum<T> alpha;
  bool aligned;

  template <class Arguments, class Tile>
  __device__ __forceinline__ BlockStore(const Arguments& p, const Tile& tile)
      : out(p.out + tile.head * p.head_out + tile.position),
        values(p.values == nullptr ? nullptr : p.values + tile.position),
        pitch(p.block_n),
        rows(tile.rows),
        columns(tile.columns),
        alpha(static_cast<Sum<T>>(p.alpha)) {
    // Every row of every block starts at a multiple of WIDTH if all blocks and the first do.
    aligned = WORDS && p.block_n % WIDTH == 0 && is_aligned(p.out) &&
              (p.values == nullptr || is_aligned(p.values));
  }

  // Stores all sums of a thread. for_each(visit) calls visit(row, column, sums) for the sums of
  // columns column .. column + WIDTH - 1 of each row of the tile that the thread has, and keeps
  // what visit changes. Values are loaded in a pass of their own, all of them in flight at once.
  template <class ForEach>
  __device__ __forceinline__ void all(const ForEach& for_each) const {
    if constexpr (WORDS != 0) {
      if (aligned) {
        if (values != nullptr)
          for_each([&](int row, int column, Sum<T>(&sums)[WIDTH]) {
            u32 factors[FACTOR_WORDS] = {};
            if (is_inside(row, column)) load_words(factors, values + row * pitch + column);
            multiply(sums, factors);
          });
        for_each([&](int row, int column, Sum<T>(&sums)[WIDTH]) {
          if (is_inside(row, column)) store_words(row * pitch + column, sums);
        });
        return;
      }
    }
    for_each([&](int row, int column, Sum<T>(&sums)[WIDTH]) {
      const Result<T, OUT> result{out, values, alpha};
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        if (!is_inside(row, column + i)) continue;
        const i64 at = row * pitch + column + i;
        // One after the other, as all values at once take too many registers.
        result.store(at, sums[i], values == nullptr ? T{} : values[at]);
      }
    });
  }

 private:
  // The number of words that WIDTH stored values fill, and WIDTH values of S; 0 for doubles, which
  // are stored one by one.
  static constexpr int WORDS = sizeof(OUT) == 8 ? 0 : WIDTH * sizeof(OUT) / 4;
  static constexpr int FACTOR_WORDS = WIDTH * sizeof(T) / 4;

  template <class Element>
  static __device__ __forceinline__ bool is_aligned(const Element* first) {
    return reinterpret_cast<unsigned long long>(first) % (WIDTH * sizeof(Element)) == 0;
  }

  __device__ __forceinline__ bool is_inside(int row, int column) const {
    return row < rows && column < columns;
  }

  // factors: values of S as they are in memory.
  static __device__ __forceinline__ void multiply(Sum<T> (&sums)[WIDTH],
                                                  const u32 (&factors)[FACTOR_WORDS]) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      if constexpr (sizeof(T) == 2) {
        sums[i] *= widened(T{static_cast<u16>(factors[i / 2] >> 16 * (i % 2))});
      } else {
        sums[i] *= __uint_as_float(factors[i]);
      }
    }
  }

  __device__ __forceinline__ void store_words(i64 at, const Sum<T> (&sums)[WIDTH]) const {
    u32 words[WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
      if constexpr (sizeof(OUT) == 2) {
        words[i] = Numeric<OUT>::pair(sums[2 * i] * alpha, sums[2 * i + 1] * alpha);
      } else {
        words[i] = __float_as_uint(sums[i] * alpha);
      }
    }
    gemm_core::ptx::st_global(out + at, words);
  }
};

}  // namespace sddmm
