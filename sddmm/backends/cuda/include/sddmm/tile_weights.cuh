// The weights of a sparse tile as the first operand of a tensor-core product: loaded line by line
// and stored to shared memory as a dense tile, with zeros where there is no nonzero.
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
  static constexpr bool HAS_FACTORS = FACTORS;
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
  // Where all 16 lines are segments, which have no gaps: the index of the nonzero that would be at
  // position 0, and the first position and the length in 8 bits each. Else the first nonzero.
  int start, range;
  u32 low, high;  // the mask
  bool segments, full;

  // line: {first nonzero, low and high word of the mask, 0}.
  __device__ __forceinline__ explicit WarpLines(int4 line)
      : low(static_cast<u32>(line.y)), high(static_cast<u32>(line.z)) {
    const int count = __popc(low) + __popc(high);
    const int first = count == 0 ? 0 : low != 0 ? __ffs(low) - 1 : 31 + __ffs(high);
    const int end = high != 0 ? 64 - __clz(high) : 32 - __clz(low);
    segments = __all_sync(FULL_MASK, count == 0 || end - first == count);
    full = __all_sync(FULL_MASK, count == TILE_SIDE);
    start = segments ? line.x - first : line.x;
    range = first | count << 8;
  }
};

// The weights of LINES lines in registers: lane i holds those at positions 2 i and 2 i + 1.
template <class W, int LINES>
struct LineWeights {
  struct NoFactors {};
  typename W::Value values[LINES][2];
  typename gemm_core::Select<W::HAS_FACTORS, typename W::Factor[LINES][2], NoFactors>::type factors;

  // Loads the lines from line `first` of the warp on.
  __device__ __forceinline__ void load(const W& weights, const WarpLines& lines, int first) {
    if (lines.full) {
      load_as<FULL>(weights, lines, first);
    } else if (lines.segments) {
      load_as<SEGMENTS>(weights, lines, first);
    } else {
      load_as<SCATTERED>(weights, lines, first);
    }
  }

  // The two weights of a line, as they are stored.
  __device__ __forceinline__ float2 pair(int line) const {
    float2 both = make_float2(widened(values[line][0]), widened(values[line][1]));
    if constexpr (W::HAS_FACTORS) {
      both.x *= widened(factors[line][0]);
      both.y *= widened(factors[line][1]);
    }
    return both;
  }

 private:
  enum Kind { FULL, SEGMENTS, SCATTERED };

  template <Kind KIND>
  __device__ __forceinline__ void load_as(const W& weights, const WarpLines& lines, int first) {
    const int position = 2 * (threadIdx.x % 32), bit = position % 32;
    const u32 below = (1u << bit) - 1;
    const u32 below_low = position < 32 ? below : FULL_MASK, below_high = position < 32 ? 0 : below;
#pragma unroll
    for (int i = 0; i < LINES; ++i) {
      const int start = __shfl_sync(FULL_MASK, lines.start, first + i);
      bool has[2] = {true, true};
      int nonzero = start + position;
      if constexpr (KIND == FULL) {
        load_pair(weights, i, has, nonzero, nonzero + 1);
      } else if constexpr (KIND == SEGMENTS) {
        const int range = __shfl_sync(FULL_MASK, lines.range, first + i);
        const u32 after = position - (range & 0xff), count = range >> 8;
        has[0] = after < count;
        has[1] = after + 1 < count;
        load_pair(weights, i, has, nonzero, nonzero + 1);
      } else {
        const u32 low = __shfl_sync(FULL_MASK, lines.low, first + i);
        const u32 high = __shfl_sync(FULL_MASK, lines.high, first + i);
        const u32 own = (position < 32 ? low : high) >> bit;
        has[0] = own & 1;
        has[1] = own & 2;
        nonzero = start + __popc(low & below_low) + __popc(high & below_high);
        load_pair(weights, i, has, nonzero, nonzero + has[0]);
      }
    }
  }

  __device__ __forceinline__ void load_pair(const W& weights, int line, const bool (&has)[2],
                                            int first, int second) {
    const int nonzeros[2] = {first, second};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      values[line][e] = typename W::Value{};
      if constexpr (W::HAS_FACTORS) factors[line][e] = typename W::Factor{};
      if (has[e]) {
        const int at = weights.position(nonzeros[e]);
        values[line][e] = weights.values[at];
        if constexpr (W::HAS_FACTORS) factors[line][e] = weights.factors[at];
      }
    }
  }
};

// A tile of half weights in shared memory: line by line, in the swizzle that ldmatrix reads.
template <class T>
struct HalfTile {
  static constexpr int BYTES = TILE_SIDE * TILE_SIDE * 2;
  using Layout = gemm_core::Swizzle<TILE_SIDE / 8>;

  // Stores this lane's two weights of a line.
  template <class W, int LINES>
  static __device__ __forceinline__ void store(unsigned char* tile, int line,
                                               const LineWeights<W, LINES>& weights, int i) {
    const int lane = threadIdx.x % 32;
    const u32 word = weights.values[i][0].bits | static_cast<u32>(weights.values[i][1].bits) << 16;
    *reinterpret_cast<u32*>(tile + Layout::offset(line, lane / 4) + lane % 4 * 4) = word;
  }
};

// A tile of float weights: line by line. Chunks of 16 bytes are XORed with a number of the line by
// which neither reading pairs of a line nor reading every second line has bank conflicts.
struct FloatTile {
  static constexpr int BYTES = TILE_SIDE * TILE_SIDE * 4;

  static __device__ __forceinline__ int offset(int line, int position) {
    const int swizzle = ((line ^ line >> 2) & 3) << 1;
    return line * (TILE_SIDE * 4) + ((position / 4 ^ swizzle) * 16 + position % 4 * 4);
  }
  template <class W, int LINES>
  static __device__ __forceinline__ void store(unsigned char* tile, int line,
                                               const LineWeights<W, LINES>& weights, int i) {
    const int position = 2 * (threadIdx.x % 32);
    *reinterpret_cast<float2*>(tile + offset(line, position)) = weights.pair(i);
  }
};

}  // namespace sddmm
