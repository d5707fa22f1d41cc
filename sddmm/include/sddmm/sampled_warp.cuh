// The epilogue of wgmma's sums, of which only the sampled entries are wanted. Each warp takes its own 16
// rows apart, so that no warp waits for another.
#pragma once

#include "gemm_core/fragment.cuh"
#include "sddmm/value.cuh"

namespace sddmm {

// 16 rows of PARTS * COLUMNS columns, a part of the columns at a time in shared memory, as STAGED. Eight
// lanes sample a row, each of them four rows. STARTS: parts in which it is known where nonzeros lie.
template <class STAGED, int COLUMNS, int PARTS, int STARTS>
struct SampledWarp {
  static constexpr int PITCH = 256 / sizeof(STAGED), BYTES = 16 * 256;  // of shared memory, a warp
  static constexpr int LANES = 8, ROWS = 4;          // lanes that share a row; rows of a lane
  static constexpr int DEPTH = (COLUMNS + 63) / 64;  // nonzeros a lane, row and part asked for early
  static_assert(COLUMNS % 8 == 0 && COLUMNS <= PITCH && STARTS == 4 && STARTS % PARTS == 0, "");

  // What is known of the nonzeros of a lane's rows before the sums are there, as memory takes its time:
  // those of part p lie at starts[.][p] .. starts[.][p + 1] - 1, and the columns of the first of them.
  struct Nonzeros {
    int starts[ROWS][PARTS + 1];
    int columns[PARTS][ROWS][DEPTH];

    // from: of the warp's 16 rows, STARTS + 1 each, by_row apart, a multiple of 16 bytes; null if there
    // are none.
    __device__ __forceinline__ void find(const int* from, int by_row) {
#pragma unroll
      for (int h = 0; h < ROWS; ++h) {
        int all[STARTS + 1] = {};
        if (from != nullptr) {
          const int* const own = from + row(h) * by_row;
          const int4 first = *reinterpret_cast<const int4*>(own);
          all[0] = first.x, all[1] = first.y, all[2] = first.z, all[3] = first.w, all[4] = own[4];
        }
#pragma unroll
        for (int part = 0; part <= PARTS; ++part) starts[h][part] = all[part * (STARTS / PARTS)];
      }
    }
    __device__ __forceinline__ void look_ahead(const int* cols) {
#pragma unroll
      for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int h = 0; h < ROWS; ++h)
#pragma unroll
          for (int d = 0; d < DEPTH; ++d)
            if (has(part, h, d)) columns[part][h][d] = cols[at(part, h, d)];
    }
    __device__ __forceinline__ int at(int part, int h, int d) const {
      return starts[h][part] + lane() % LANES + d * LANES;
    }
    __device__ __forceinline__ bool has(int part, int h, int d) const {
      return at(part, h, d) < starts[h][part + 1];
    }
  };

  // store(nonzero, scale * sum) for all nonzeros of the warp's rows, whose columns, in `cols`, count
  // from n0. sums: as in fragment.cuh: wgmma_d. By a whole warp; `staged` has BYTES of its own.
  template <class Store>
  static __device__ __forceinline__ void sample(const float (&sums)[PARTS * COLUMNS / 2], float scale,
                                                const Nonzeros& nonzeros, const int* cols, int n0,
                                                STAGED* staged, const Store& store) {
    using Numeric = gemm_core::Numeric<STAGED>;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      __syncwarp();  // what lay there has been read
#pragma unroll
      for (int i = 0; i < COLUMNS / 2; i += 2) {
        const auto at = gemm_core::fragment::wgmma_d(lane(), i);
        const float* const pair = sums + part * COLUMNS / 2 + i;
        *reinterpret_cast<typename Numeric::Pair*>(staged + place(at.row, at.column)) =
            Numeric::pair(scale * pair[0], scale * pair[1]);
      }
      __syncwarp();
      const int left = n0 + part * COLUMNS;
      STAGED taken[ROWS][DEPTH];
#pragma unroll
      for (int h = 0; h < ROWS; ++h)
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
          if (nonzeros.has(part, h, d))
            taken[h][d] = staged[place(row(h), nonzeros.columns[part][h][d] - left)];
#pragma unroll
      for (int h = 0; h < ROWS; ++h)
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
          if (nonzeros.has(part, h, d)) store(nonzeros.at(part, h, d), taken[h][d]);
#pragma unroll
      for (int h = 0; h < ROWS; ++h)
        for (int at = nonzeros.at(part, h, DEPTH); at < nonzeros.starts[h][part + 1]; at += LANES)
          store(at, staged[place(row(h), cols[at] - left)]);
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int row(int h) { return lane() / LANES + ROWS * h; }
  // Columns are XORed with the row, by eights, so that sums are put down without bank conflicts.
  static __device__ __forceinline__ int place(int row, int column) {
    return row * PITCH + (column ^ row % (PITCH / 16) * 8);
  }
};

}  // namespace sddmm
