// The weights of a sparse tile as the first operand of a dense product: loaded line by line and
// stored to shared memory as a dense tile, with zeros where there is no nonzero.
#pragma once

#include "gemm_core/swizzle.cuh"
#include "sddmm/value.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

// Tiles have 64 x 64 positions. A line is a row of a tile, or a column where nonzeros are stored
// column by column; a mask has one bit for each of its positions.
constexpr int TILE_SIDE = 64;

// The weights of nonzeros: values[i] * factors[i], or values[i] without FACTORS. PERMUTED: nonzero i
// is at position perm[i].
template <class V, class F, bool FACTORS, bool PERMUTED>
struct Weights {
  using Value = V;
  using Factor = F;
  static constexpr bool HAS_FACTORS = FACTORS, IS_PERMUTED = PERMUTED;
  const V* values;
  const F* factors;
  const int* perm;

  __device__ __forceinline__ int position(int nonzero) const {
    if constexpr (PERMUTED) return perm[nonzero];
    return nonzero;
  }
  // One weight. It is exact where both are of half types: their product has 22 bits.
  __device__ __forceinline__ float operator()(int nonzero) const {
    const int at = position(nonzero);
    float weight = widened(values[at]);
    if constexpr (FACTORS) weight *= widened(factors[at]);
    return weight;
  }
};

// The 16 lines of a tile that one warp loads; lane i has line i % 16.
struct WarpLines {
  int begin;      // the first nonzero
  u32 low, high;  // the mask

  // line: {first nonzero, low and high word of the mask, 0}.
  __device__ __forceinline__ explicit WarpLines(int4 line)
      : begin(line.x), low(static_cast<u32>(line.y)), high(static_cast<u32>(line.z)) {}

  __device__ __forceinline__ bool are_full() const {
    return __all_sync(FULL_MASK, (low & high) == FULL_MASK);
  }
};

// Eight adjacent halves in registers, as two chunks of 16 bytes that hold them wherever they start.
// All of them are of one lane: positions 8 c .. 8 c + 7 of a line, with a mask of those that exist.
struct Chunks {
  u32 words[8];

  // Loads what exists of halves[start ..]; nothing is read of a chunk in which none does.
  template <class T>
  __device__ __forceinline__ void load(const T* halves, int start, u32 mask) {
    // The halves between a multiple of 16 bytes and the first.
    const int before = reinterpret_cast<unsigned long long>(halves) / 2 % 8;
    start += before;
    const int shift = start & 7;
    const uint4* const from = reinterpret_cast<const uint4*>(halves + (start - shift - before));
    load_chunk(0, from, (mask & 0xff >> shift) != 0);
    load_chunk(4, from + 1, mask >> (8 - shift) != 0);
  }

  // The halves, with zeros where the mask has no bit. halves, start: as they were loaded.
  template <class T>
  __device__ __forceinline__ uint4 shifted(const T* halves, int start, u32 mask, bool full) const {
    const u32 shift = start + reinterpret_cast<unsigned long long>(halves) / 2;
    u32 by_two[6], by_one[5], out[4];
#pragma unroll
    for (int j = 0; j < 6; ++j) by_two[j] = shift & 4 ? words[j + 2] : words[j];
#pragma unroll
    for (int j = 0; j < 5; ++j) by_one[j] = shift & 2 ? by_two[j + 1] : by_two[j];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      out[j] = __funnelshift_r(by_one[j], by_one[j + 1], shift % 2 * 16);
    if (!full) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        out[j] &= (mask >> 2 * j & 1) * 0xffffu + (mask >> (2 * j + 1) & 1) * 0xffff0000u;
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
  }

 private:
  __device__ __forceinline__ void load_chunk(int word, const uint4* from, bool exists) {
    uint4 chunk = make_uint4(0, 0, 0, 0);
    if (exists) chunk = *from;
    words[word] = chunk.x, words[word + 1] = chunk.y;
    words[word + 2] = chunk.z, words[word + 3] = chunk.w;
  }
};

// Half weights, or products of two halves, of LINES lines in registers: eight lanes load a line,
// eight positions each. That needs nonzeros of eight positions to be neighbours; else lane i loads
// those at positions 2 i and 2 i + 1 of each line.
template <class W, int LINES_>
struct HalfLines {
  static constexpr int LINES = LINES_, STEPS = LINES / 4, LANES_PER_LINE = 8;
  static constexpr int OPERANDS = W::HAS_FACTORS ? 2 : 1;
  static_assert(sizeof(typename W::Value) == 2, "halves as they are stored");

  // Two chunks of each operand and step; or, as u32, two halves of each line.
  Chunks chunks[OPERANDS][STEPS];
  // For each step, the nonzero that would be at this lane's first position, and the mask.
  int start[STEPS];
  u32 mask[STEPS];
  bool by_chunk, full;

  // Loads the lines from line `first` of the warp on.
  __device__ __forceinline__ void load(const W& weights, const WarpLines& lines, int first) {
    full = lines.are_full();
    by_chunk = !W::IS_PERMUTED && (full ? locate<true>(lines, first) : locate<false>(lines, first));
    if (by_chunk) {
#pragma unroll
      for (int i = 0; i < STEPS; ++i) {
        chunks[0][i].load(weights.values, start[i], mask[i]);
        if constexpr (W::HAS_FACTORS) chunks[1][i].load(weights.factors, start[i], mask[i]);
      }
    } else {
      load_single(weights, lines, first);
    }
  }

  // Stores the lines to a tile, from line `line` of it on.
  template <class Tile>
  __device__ __forceinline__ void store(const W& weights, unsigned char* tile, int line) const {
    const int lane = threadIdx.x % 32;
    if (by_chunk) {
#pragma unroll
      for (int i = 0; i < STEPS; ++i) {
        const int own_line = line + 4 * i + lane / LANES_PER_LINE;
        const uint4 values = chunks[0][i].shifted(weights.values, start[i], mask[i], full);
        if constexpr (W::HAS_FACTORS) {
          const uint4 factors = chunks[1][i].shifted(weights.factors, start[i], mask[i], full);
          store_products<Tile>(tile, own_line, lane % LANES_PER_LINE, values, factors);
        } else {
          *reinterpret_cast<uint4*>(tile + Tile::offset(own_line, lane % LANES_PER_LINE * 8)) =
              values;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < LINES; ++i) {
        const u32* const values = chunks[0][i / 4].words + i % 4 * 2;
        if constexpr (W::HAS_FACTORS) {
          const u32* const factors = chunks[1][i / 4].words + i % 4 * 2;
          *reinterpret_cast<float2*>(tile + Tile::offset(line + i, 2 * lane)) =
              make_float2(product(values[0], factors[0]), product(values[1], factors[1]));
        } else {
          *reinterpret_cast<u32*>(tile + Tile::offset(line + i, 2 * lane)) =
              values[0] | values[1] << 16;
        }
      }
    }
  }

 private:
  // Finds where this lane's weights start; whether those of every lane are neighbours.
  template <bool FULL>
  __device__ __forceinline__ bool locate(const WarpLines& lines, int first) {
    const int chunk = threadIdx.x % LANES_PER_LINE, bit = chunk % 4 * 8;
    const u32 before = (1u << bit) - 1;
    bool adjacent = true;
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int line = first + 4 * i + threadIdx.x % 32 / LANES_PER_LINE;
      start[i] = __shfl_sync(FULL_MASK, lines.begin, line);
      if constexpr (FULL) {
        start[i] += 8 * chunk;
        mask[i] = 0xff;
      } else {
        const u32 low = __shfl_sync(FULL_MASK, lines.low, line);
        const u32 high = __shfl_sync(FULL_MASK, lines.high, line);
        const u32 own = (chunk < 4 ? low : high) >> bit & 0xff;
        start[i] += chunk < 4 ? __popc(low & before) : __popc(low) + __popc(high & before);
        start[i] -= own == 0 ? 0 : __ffs(own) - 1;
        mask[i] = own;
        adjacent = adjacent && (((own | (own - 1)) + 1) & own) == 0;
      }
    }
    return FULL || __all_sync(FULL_MASK, adjacent);
  }

  static __device__ __forceinline__ float product(u32 value, u32 factor) {
    return widened(typename W::Value{static_cast<u16>(value)}) *
           widened(typename W::Factor{static_cast<u16>(factor)});
  }
  template <class Tile>
  static __device__ __forceinline__ void store_products(unsigned char* tile, int line, int chunk,
                                                        uint4 values, uint4 factors) {
    *reinterpret_cast<float4*>(tile + Tile::offset(line, 8 * chunk)) =
        float4{product(values.x, factors.x), product(values.x >> 16, factors.x >> 16),
               product(values.y, factors.y), product(values.y >> 16, factors.y >> 16)};
    *reinterpret_cast<float4*>(tile + Tile::offset(line, 8 * chunk + 4)) =
        float4{product(values.z, factors.z), product(values.z >> 16, factors.z >> 16),
               product(values.w, factors.w), product(values.w >> 16, factors.w >> 16)};
  }

  __device__ __forceinline__ void load_single(const W& weights, const WarpLines& lines, int first) {
    const int position = 2 * (threadIdx.x % 32), bit = position % 32;
    const u32 below = (1u << bit) - 1;
    const u32 below_low = position < 32 ? below : FULL_MASK, below_high = position < 32 ? 0 : below;
#pragma unroll
    for (int i = 0; i < LINES; ++i) {
      const u32 low = __shfl_sync(FULL_MASK, lines.low, first + i);
      const u32 high = __shfl_sync(FULL_MASK, lines.high, first + i);
      const u32 own = (position < 32 ? low : high) >> bit;
      const int nonzero = __shfl_sync(FULL_MASK, lines.begin, first + i) + __popc(low & below_low) +
                          __popc(high & below_high);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int word = i % 4 * 2 + e;
        chunks[0][i / 4].words[word] = 0;
        if constexpr (W::HAS_FACTORS) chunks[1][i / 4].words[word] = 0;
        if (own >> e & 1) {
          const int at = weights.position(nonzero + (e == 1 ? own & 1 : 0));
          chunks[0][i / 4].words[word] = weights.values[at].bits;
          if constexpr (W::HAS_FACTORS) chunks[1][i / 4].words[word] = weights.factors[at].bits;
        }
      }
    }
  }
};

// Weights of which one operand is of floats, of LINES lines in registers: lane i has those at
// positions i and 32 + i. BY_COLUMN: lines are columns of W.
template <class W, int LINES_, bool BY_COLUMN>
struct FloatLines {
  static constexpr int LINES = LINES_;
  static_assert(BY_COLUMN || LINES % 4 == 0, "four rows of W are stored at once");
  struct NoFactors {};
  typename W::Value values[LINES][2];
  typename gemm_core::Select<W::HAS_FACTORS, typename W::Factor[LINES][2], NoFactors>::type factors;

  // Loads the lines from line `first` of the warp on.
  __device__ __forceinline__ void load(const W& weights, const WarpLines& lines, int first) {
    if (lines.are_full()) {
      load_as<true>(weights, lines, first);
    } else {
      load_as<false>(weights, lines, first);
    }
  }

  template <class Tile>
  __device__ __forceinline__ void store(const W&, unsigned char* tile, int line) const {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int position = threadIdx.x % 32 + 32 * e;
      if constexpr (BY_COLUMN) {
#pragma unroll
        for (int i = 0; i < LINES; ++i)
          *reinterpret_cast<float*>(tile + Tile::offset(line + i, position)) = weight(i, e);
      } else {
#pragma unroll
        for (int i = 0; i < LINES; i += 4)
          *reinterpret_cast<float4*>(tile + Tile::offset(position, line + i)) =
              float4{weight(i, e), weight(i + 1, e), weight(i + 2, e), weight(i + 3, e)};
      }
    }
  }

 private:
  __device__ __forceinline__ float weight(int line, int e) const {
    float weight = widened(values[line][e]);
    if constexpr (W::HAS_FACTORS) weight *= widened(factors[line][e]);
    return weight;
  }

  template <bool FULL>
  __device__ __forceinline__ void load_as(const W& weights, const WarpLines& lines, int first) {
    const int lane = threadIdx.x % 32;
    const u32 own = 1u << lane, below = own - 1;
#pragma unroll
    for (int i = 0; i < LINES; ++i) {
      const int begin = __shfl_sync(FULL_MASK, lines.begin, first + i);
      if constexpr (FULL) {
        load_one(weights, i, 0, true, begin + lane);
        load_one(weights, i, 1, true, begin + lane + 32);
      } else {
        const u32 low = __shfl_sync(FULL_MASK, lines.low, first + i);
        const u32 high = __shfl_sync(FULL_MASK, lines.high, first + i);
        load_one(weights, i, 0, low & own, begin + __popc(low & below));
        load_one(weights, i, 1, high & own, begin + __popc(low) + __popc(high & below));
      }
    }
  }

  __device__ __forceinline__ void load_one(const W& weights, int line, int e, bool exists,
                                           int nonzero) {
    values[line][e] = typename W::Value{};
    if constexpr (W::HAS_FACTORS) factors[line][e] = typename W::Factor{};
    if (exists) {
      const int at = weights.position(nonzero);
      values[line][e] = weights.values[at];
      if constexpr (W::HAS_FACTORS) factors[line][e] = weights.factors[at];
    }
  }
};

// A tile of half weights in shared memory: line by line, in the swizzle that ldmatrix reads.
template <class T>
struct HalfTile {
  static constexpr int BYTES = TILE_SIDE * TILE_SIDE * 2;
  using Layout = gemm_core::Swizzle<TILE_SIDE / 8>;

  static __device__ __forceinline__ int offset(int line, int position) {
    return Layout::offset(line, position / 8) + position % 8 * 2;
  }
};

// A tile of float weights for SimtProduct: column of W by column, whatever its lines are. Four
// elements are between them: storing four rows of eight columns then has no bank conflicts.
struct ColumnTile {
  using Layout = gemm_core::Padded<float, TILE_SIDE, 4>;
  static constexpr int BYTES = TILE_SIDE * Layout::PITCH * 4;

  static __device__ __forceinline__ int offset(int column, int row) {
    return (column * Layout::PITCH + row) * 4;
  }
};

// A tile of float weights for Tf32Product: line by line. Chunks of 16 bytes are XORed with a number
// of the line by which neither reading pairs of a line nor reading every second line has bank
// conflicts.
struct FloatTile {
  static constexpr int BYTES = TILE_SIDE * TILE_SIDE * 4;

  static __device__ __forceinline__ int swizzle(int line) { return ((line ^ line >> 2) & 3) << 1; }
  static __device__ __forceinline__ int offset(int line, int position) {
    return line * (TILE_SIDE * 4) + ((position / 4 ^ swizzle(line)) * 16 + position % 4 * 4);
  }
};

}  // namespace sddmm
