// The epilogue of a tile of which only the sampled entries are wanted: through shared memory, from
// which each nonzero takes its own.
#pragma once

#include "sddmm/value.cuh"

namespace sddmm {

// A BM x BN tile of sums in shared memory, for THREADS threads. Rows are eight floats further apart
// than they are long, so that fragments are written without bank conflicts.
template <int BM, int BN, int THREADS>
struct SampledTile {
  static constexpr int PITCH = BN + 8, BYTES = BM * PITCH * 4;
  static constexpr int LANES = 8;  // that share a row
  static constexpr int ROWS = THREADS / LANES, ROUNDS = (BM + ROWS - 1) / ROWS;

  float* tile;

  // What gemm_core::store_mma and store_wmma hand over, from (0, 0) on.
  __device__ __forceinline__ void operator()(int row, int column, float v0, float v1) const {
    *reinterpret_cast<float2*>(tile + row * PITCH + column) = make_float2(v0, v1);
  }
  __device__ __forceinline__ void operator()(int row, int column, float v) const {
    tile[row * PITCH + column] = v;
  }

  // A thread's place among the nonzeros of each of its rows. Those of row r are bounds[r].x ..
  // bounds[r].y - 1, their columns ascending.
  struct Cursor {
    const int* cols;
    int at[ROUNDS], end[ROUNDS];
    int column[ROUNDS];  // of nonzero `at`, from n0 on
    int n0, thread;

    // Begun before the sums are put down, as memory takes its time.
    __device__ __forceinline__ Cursor(const int2* bounds, const int* cols_, int n0_, int thread_)
        : cols(cols_), n0(n0_), thread(thread_) {
#pragma unroll
      for (int i = 0; i < ROUNDS; ++i) {
        const int row = thread / LANES + i * ROWS;
        const int2 found = BM % ROWS == 0 || row < BM ? bounds[row] : make_int2(0, 0);
        at[i] = found.x + thread % LANES, end[i] = found.y;
      }
#pragma unroll
      for (int i = 0; i < ROUNDS; ++i) column[i] = at[i] < end[i] ? cols[at[i]] - n0 : 0;
    }
  };

  // store(nonzero, sum) for the nonzeros in columns first .. first + BN, by all threads, whose sums
  // are in place. Calls follow each other from left to right.
  template <class Store>
  __device__ __forceinline__ void sample(Cursor& cursor, int first, const Store& store) const {
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
      const float* sums = tile + (cursor.thread / LANES + i * ROWS) * PITCH - first;
      while (cursor.at[i] < cursor.end[i] && cursor.column[i] < first + BN) {
        store(cursor.at[i], sums[cursor.column[i]]);
        if ((cursor.at[i] += LANES) < cursor.end[i])
          cursor.column[i] = cursor.cols[cursor.at[i]] - cursor.n0;
      }
    }
  }
};

}  // namespace sddmm
