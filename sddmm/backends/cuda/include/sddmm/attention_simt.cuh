// A block's 64 rows of Q and the tiles that it takes, multiplied by CUDA cores: floats, exactly.
#pragma once

#include "sddmm/attention_tile.cuh"
#include "sddmm/tile_softmax.cuh"

namespace sddmm {

// A warp as 4 x 8 lanes, each of which has 4 x 8 of its 16 x 64 scores: every fourth row and every
// eighth column. The lanes t and t ^ 1 share their rows, t and t ^ 2 their columns: loads of 16 bytes in
// which all such pairs read the same address take two passes of shared memory, others four
// (https://forums.developer.nvidia.com/t/unexpected-shared-memory-bank-conflict/77228, of capability 7).
struct SimtLanes {
  static constexpr int BLOCK_ROWS = 8, ROW_STEP = 4, GROUP_COLUMNS = 16, COLUMN_STEP = 8;
  static constexpr u32 ROW_LANES = 0b01101;
  static __device__ __forceinline__ fragment::Position at(int e) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return {lane / 2 % 2 + lane / 16 * 2 + ROW_STEP * (e / 2),
            lane % 2 + lane / 4 % 4 * 2 + COLUMN_STEP * (e % 2)};
  }
};

// A warp has 16 rows. Shared memory: the rows of Q; one tile of K and one of V, of which each is
// replaced while the other is multiplied; half a tile of weights; two stages of masks; then `END_AT`.
template <class Config>
struct SimtAttention {
  static constexpr int KEY_COLUMNS = Config::KEY_COLUMNS, VALUE_COLUMNS = Config::VALUE_COLUMNS;
  static constexpr int ROWS = SIDE, BLOCKS = 2;  // of eight rows of a warp
  static constexpr int GROUPS = SIDE / 16, VALUE_GROUPS = VALUE_COLUMNS / 16;
  static constexpr int LANE_ROWS = 2 * BLOCKS, LANE_COLUMNS = 2 * GROUPS;
  static_assert(Config::THREADS / 32 * BLOCKS * SimtLanes::BLOCK_ROWS == ROWS,
                "warps share a block's rows");
  using Lanes = SimtLanes;
  using Rows = LaneRows<BLOCKS, GROUPS, VALUE_GROUPS, Lanes::ROW_LANES>;
  using Tile = WarpTile<BLOCKS, GROUPS, ROWS, Config::BY_COLUMN, Lanes>;
  using Products = typename Tile::Products;

  // Neighbouring rows of K start in different groups of four banks, and so do those of weights, whose
  // neighbouring rows are also stored to different banks. Rows of V are read one at a time.
  using KeyLayout = gemm_core::Padded<float, KEY_COLUMNS, 4>;
  using ValueLayout = gemm_core::Padded<float, VALUE_COLUMNS, 0>;
  using WeightLayout = gemm_core::Padded<float, SIDE / 2, 8>;
  using KeyRows = OperandRows<float, KEY_COLUMNS, Config::THREADS, Config::ALIGNED, KeyLayout>;
  using ValueRows = OperandRows<float, VALUE_COLUMNS, Config::THREADS, Config::ALIGNED, ValueLayout>;
  static constexpr int KEYS_AT = ROWS * KeyLayout::ROW_BYTES;
  static constexpr int VALUES_AT = KEYS_AT + SIDE * KeyLayout::ROW_BYTES;
  static constexpr int WEIGHTS_AT = VALUES_AT + SIDE * ValueLayout::ROW_BYTES;
  static constexpr int MASKS_AT = WEIGHTS_AT + ROWS * WeightLayout::ROW_BYTES;
  static constexpr int END_AT = MASKS_AT + TileMasks<ROWS>::BYTES;

  // Neighbouring columns of V that a lane loads at once.
  static constexpr int VECTOR = VALUE_COLUMNS < 32 ? 2 : 4;
  // The first of two neighbouring columns of V that a lane has in group j of its sums.
  static __device__ __forceinline__ int value_column(int j) {
    constexpr int PAIRS = VECTOR / 2;
    return 8 * VECTOR * (j / PAIRS) + VECTOR * Lanes::at(0).column + j % PAIRS * 2;
  }

  // rows.out += weights V for each tile of the part. weigh(tile, scores) makes weights of scores.
  template <class Head, class Weigh>
  static __device__ __forceinline__ void run(Rows& rows, const Head& h, int4 part, int warp_row,
                                             unsigned char* shared, const Weigh& weigh) {
    const auto& p = h.p;
    const KeyRows keys_of{h.k, p.pitch_k, p.d};
    const ValueRows values_of{h.v, p.pitch_v, p.dv};
    const TileMasks<ROWS> masks{shared + MASKS_AT, p.tiles, p.masks};
    auto copy_keys = [&](int tile, TilePlace place, int stage) {
      keys_of.template copy<SIDE>(shared + KEYS_AT, place.first_column, p.n);
      if (!place.template all_full<ROWS>()) masks.copy(tile, stage);
    };
    auto copy_values = [&](int tile, TilePlace place, int stage) {
      values_of.template copy<SIDE>(shared + VALUES_AT, place.first_column, p.n);
      if (tile + 1 < part.y) masks.copy_place(tile + 1, stage ^ 1);
    };
    KeyRows{h.q, p.pitch_q, p.d}.template copy<ROWS>(shared, part.z, p.m);
    TilePlace place{0, 0};
    if (part.x < part.y) copy_keys(part.x, place = p.tiles[part.x], 0);
    ptx::cp_async_commit();
    if (part.x < part.y) copy_values(part.x, place, 0);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    __syncthreads();

#pragma unroll 1
    for (int tile = part.x, stage = 0; tile < part.y; ++tile, stage ^= 1) {
      const bool is_empty = place.is_empty(warp_row), has_next = tile + 1 < part.y;
      Products scores = {};
      if (!is_empty) multiply_keys(scores, shared, warp_row);
      ptx::cp_async_wait<0>();
      __syncthreads();  // the tile of V is there; and all have multiplied that of K
      const TilePlace next = masks.place(stage ^ 1);
      if (has_next) copy_keys(tile + 1, next, stage ^ 1);
      ptx::cp_async_commit();
      if (!is_empty) {
        weigh(Tile{warp_row, place.is_full(warp_row), masks.of(stage) + warp_row,
                   p.lines + static_cast<i64>(tile) * ROWS},
              scores);
        multiply_values(rows.out, scores, shared, warp_row);
      }
      place = next;
      ptx::cp_async_wait<0>();
      __syncthreads();  // the next tile of K is there; and all have multiplied this one of V
      if (has_next) copy_values(tile + 1, next, stage ^ 1);
      ptx::cp_async_commit();
    }
  }

 private:
  template <int COUNT>
  static __device__ __forceinline__ void load(float* target, const float* source) {
    struct alignas(COUNT * 4) Vector {
      float x[COUNT];
    };
    const Vector vector = *reinterpret_cast<const Vector*>(source);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) target[i] = vector.x[i];
  }

  // products += factor * (one element of each of the lane's rows), for column `column` of the lane's.
  // Down one column and up the next: operations in sequence share a register, which saves a read.
  template <int G>
  static __device__ __forceinline__ void add(float (&products)[BLOCKS][G][4], int column,
                                             const float (&own)[LANE_ROWS][4], int k, float factor) {
#pragma unroll
    for (int step = 0; step < LANE_ROWS; ++step) {
      const int row = column % 2 == 0 ? step : LANE_ROWS - 1 - step;
      float& sum = products[row / 2][column / 2][row % 2 * 2 + column % 2];
      sum = fmaf(own[row][k], factor, sum);
    }
  }

  // scores += the warp's rows of Q times the tile of K.
  static __device__ __forceinline__ void multiply_keys(Products& scores, const unsigned char* shared,
                                                       int warp_row) {
    constexpr int PITCH = KeyLayout::PITCH;
    const fragment::Position own = Lanes::at(0);
    const float* q = reinterpret_cast<const float*>(shared) + (warp_row + own.row) * PITCH;
    const float* key = reinterpret_cast<const float*>(shared + KEYS_AT) + own.column * PITCH;
#pragma unroll 4
    for (int k = 0; k < KEY_COLUMNS; k += 4) {
      float row[LANE_ROWS][4];
#pragma unroll
      for (int i = 0; i < LANE_ROWS; ++i) load<4>(row[i], q + Lanes::ROW_STEP * i * PITCH + k);
#pragma unroll
      for (int j = 0; j < LANE_COLUMNS; ++j) {
        float column[4];
        load<4>(column, key + Lanes::COLUMN_STEP * j * PITCH + k);
#pragma unroll
        for (int e = 0; e < 4; ++e) add(scores, j, row, e, column[e]);
      }
    }
  }

  // sums += weights V, half of the weights' columns after the other through shared memory.
  static __device__ __forceinline__ void multiply_values(float (&sums)[BLOCKS][VALUE_GROUPS][4],
                                                         const Products& weights,
                                                         unsigned char* shared, int warp_row) {
    constexpr int PITCH = WeightLayout::PITCH, HALF = SIDE / 2;
    const fragment::Position own = Lanes::at(0);
    float* const stored =
        reinterpret_cast<float*>(shared + WEIGHTS_AT) + (warp_row + own.row) * PITCH;
    const float* value = reinterpret_cast<const float*>(shared + VALUES_AT) + own.column * VECTOR;
#pragma unroll
    for (int half = 0; half < 2; ++half, value += HALF * VALUE_COLUMNS) {
      __syncwarp();  // all have loaded the weights before
#pragma unroll
      for (int i = 0; i < LANE_ROWS; ++i)
#pragma unroll
        for (int j = 0; j < LANE_COLUMNS / 2; ++j) {
          const int column = LANE_COLUMNS / 2 * half + j;
          stored[Lanes::ROW_STEP * i * PITCH + Lanes::COLUMN_STEP * j + own.column] =
              weights[i / 2][column / 2][i % 2 * 2 + column % 2];
        }
      __syncwarp();
#pragma unroll 2
      for (int k = 0; k < HALF; k += 4) {
        float weight[LANE_ROWS][4];
#pragma unroll
        for (int i = 0; i < LANE_ROWS; ++i)
          load<4>(weight[i], stored + Lanes::ROW_STEP * i * PITCH + k);
#pragma unroll
        for (int e = 0; e < 4; ++e)
#pragma unroll
          for (int j = 0; j < 2 * VALUE_GROUPS; j += VECTOR) {
            float x[VECTOR];
            load<VECTOR>(x, value + (k + e) * VALUE_COLUMNS + 8 * j);
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) add(sums, j + i, weight, e, x[i]);
          }
      }
    }
  }
};

}  // namespace sddmm
