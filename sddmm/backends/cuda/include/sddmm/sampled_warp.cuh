// The epilogue of wgmma's sums, of which only the sampled entries are wanted. Each warp takes its
// own 16 rows apart, so that no warp waits for another.
#pragma once

#include "gemm_core/fragment.cuh"
#include "sddmm/value.cuh"

namespace sddmm {

// 16 rows of COLUMNS columns, PART of them at a time in shared memory, as STAGED. Eight lanes
// sample a row, each of them four rows; it knows DEPTH nonzeros of each early. ROW_BYTES: what
// shared memory has for a row, 256 or 176.
template <class STAGED, int COLUMNS, int DEPTH, int ROW_BYTES>
struct SampledWarp {
  // Rows 256 bytes apart lie in the same banks, so their columns are XORed with the row, by eights.
  // Those 160 or 176 bytes apart lie in different banks by themselves.
  static constexpr bool XORED = ROW_BYTES == 256;
  static constexpr int PART = (XORED ? 256 : sizeof(STAGED) == 4 ? 160 : 176) / sizeof(STAGED);
  static constexpr int BYTES = 16 * ROW_BYTES;  // of shared memory, a warp
  static constexpr int LANES = 8, ROWS = 4;     // lanes that share a row; rows of a lane
  static_assert(COLUMNS % 8 == 0 && (XORED || ROW_BYTES == 176), "");

  // What is known of the nonzeros of a lane's rows before the sums are there, as memory takes its
  // time: where those of each row begin and end, and the columns of the first of them, else -1.
  struct Nonzeros {
    int begin[ROWS], end[ROWS], columns[ROWS][DEPTH];

    // from: where those of the warp's 16 rows begin, by_row apart, each followed by its end; null
    // if there are none.
    __device__ __forceinline__ void find(const int* from, int by_row) {
#pragma unroll
      for (int h = 0; h < ROWS; ++h) {
        const int* const own = from + row(h) * by_row;
        begin[h] = from != nullptr ? own[0] : 0;
        end[h] = from != nullptr ? own[1] : 0;
      }
    }
    __device__ __forceinline__ void look_ahead(const int* cols) {
#pragma unroll
      for (int h = 0; h < ROWS; ++h)
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) columns[h][d] = has(h, d) ? cols[at(h, d)] : -1;
    }
    __device__ __forceinline__ int at(int h, int d) const {
      return begin[h] + lane() % LANES + d * LANES;
    }
    __device__ __forceinline__ bool has(int h, int d) const { return at(h, d) < end[h]; }
  };

  // store(nonzero, scale * sum) for all nonzeros of the warp's rows, whose columns, in `cols`,
  // ascend from n0. sums: as in fragment.cuh: wgmma_d. By a whole warp; `staged` has BYTES of its
  // own.
  template <class Store>
  static __device__ __forceinline__ void sample(const float (&sums)[COLUMNS / 2], float scale,
                                                const Nonzeros& nonzeros, const int* cols, int n0,
                                                STAGED* staged, const Store& store) {
    using Numeric = gemm_core::Numeric<STAGED>;
    STAGED taken[ROWS][DEPTH];
    int next[ROWS];  // nonzero of those not known early
    bool all_known = true;
#pragma unroll
    for (int h = 0; h < ROWS; ++h) {
      next[h] = nonzeros.at(h, DEPTH);
      all_known &= next[h] >= nonzeros.end[h];
    }
    all_known = __all_sync(0xffffffff, all_known);
#pragma unroll
    for (int from = 0; from < COLUMNS; from += PART) {
      const int left = n0 + from;
      __syncwarp();  // what lay there has been read
#pragma unroll
      for (int i = from / 2; i < from / 2 + PART / 2 && i < COLUMNS / 2; i += 2) {
        const auto at = gemm_core::fragment::wgmma_d(lane(), i);
        *reinterpret_cast<typename Numeric::Pair*>(staged + place(at.row, at.column - from)) =
            Numeric::pair(scale * sums[i], scale * sums[i + 1]);
      }
      __syncwarp();
#pragma unroll
      for (int h = 0; h < ROWS; ++h)
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
          const int column = nonzeros.columns[h][d] - left;
          if (inside(column)) taken[h][d] = staged[place(row(h), column)];
        }
      if (all_known) continue;
#pragma unroll
      for (int h = 0; h < ROWS; ++h)
        for (; next[h] < nonzeros.end[h]; next[h] += LANES) {
          const int column = cols[next[h]] - left;
          if (!inside(column)) break;
          store(next[h], staged[place(row(h), column)]);
        }
    }
#pragma unroll
    for (int h = 0; h < ROWS; ++h)
#pragma unroll
      for (int d = 0; d < DEPTH; ++d)
        if (nonzeros.has(h, d)) store(nonzeros.at(h, d), taken[h][d]);
  }

 private:
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int row(int h) { return lane() / LANES + ROWS * h; }
  static __device__ __forceinline__ bool inside(int column) {
    return static_cast<unsigned int>(column) < static_cast<unsigned int>(PART);
  }
  static __device__ __forceinline__ int place(int row, int column) {
    return row * PART + (XORED ? column ^ row % (PART / 16) * 8 : column);
  }
};

}  // namespace sddmm
