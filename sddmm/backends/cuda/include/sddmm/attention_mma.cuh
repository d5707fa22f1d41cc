// A block's 64 rows of Q and the tiles that it takes, multiplied by tensor cores: halves.
#pragma once

#include "sddmm/attention_tile.cuh"
#include "sddmm/tile_softmax.cuh"

namespace sddmm {

// A warp has 16 rows. It holds those of Q as fragments. Shared memory: the rows of Q, and two stages of
// tiles of K, of V and of masks; then `END_AT`.
template <class Config>
struct MmaAttention {
  using Element = typename Config::Element;
  static constexpr int KEY_COLUMNS = Config::KEY_COLUMNS, VALUE_COLUMNS = Config::VALUE_COLUMNS;
  static constexpr int ROWS = SIDE, WARP_ROWS = ROWS / (Config::THREADS / 32);
  static constexpr int BLOCKS = WARP_ROWS / MMA_ROWS;                         // of 16 rows of a warp
  static constexpr int GROUPS = SIDE / 8, VALUE_GROUPS = VALUE_COLUMNS / 8;  // of eight columns
  static_assert(BLOCKS * MMA_ROWS * Config::THREADS / 32 == ROWS, "warps share a block's rows");
  using Lanes = MmaLanes;
  using Rows = LaneRows<BLOCKS, GROUPS, VALUE_GROUPS, Lanes::ROW_LANES>;
  using Tile = WarpTile<BLOCKS, GROUPS, ROWS, Config::BY_COLUMN, Lanes>;

  using KeyRows = HalfRows<Element, KEY_COLUMNS, Config::THREADS, Config::ALIGNED>;
  using ValueRows = HalfRows<Element, VALUE_COLUMNS, Config::THREADS, Config::ALIGNED>;
  static constexpr int Q_BYTES = ROWS * KeyRows::ROW_BYTES, K_BYTES = SIDE * KeyRows::ROW_BYTES;
  static constexpr int STAGE_BYTES = K_BYTES + SIDE * ValueRows::ROW_BYTES;
  static constexpr int MASKS_AT = Q_BYTES + 2 * STAGE_BYTES;
  static constexpr int END_AT = MASKS_AT + TileMasks<ROWS>::BYTES;

  // The first of two neighbouring columns of V that a lane has in group j of its sums.
  static __device__ __forceinline__ int value_column(int j) { return 8 * j + Lanes::at(0).column; }

  // rows.out += weights V for each tile of the part. weigh(tile, scores) makes weights of scores.
  template <class Head, class Weigh>
  static __device__ __forceinline__ void run(Rows& rows, const Head& h, int4 part, int warp_row,
                                             unsigned char* shared, const Weigh& weigh) {
    const auto& p = h.p;
    const KeyRows keys_of{h.k, p.pitch_k, p.d};
    const ValueRows values_of{h.v, p.pitch_v, p.dv};
    const TileMasks<ROWS> masks{shared + MASKS_AT, p.tiles, p.masks};
    auto copy_tile = [&](int tile, TilePlace place, int stage) {
      unsigned char* const target = shared + Q_BYTES + stage * STAGE_BYTES;
      keys_of.template copy<SIDE>(target, place.first_column, p.n);
      values_of.template copy<SIDE>(target + K_BYTES, place.first_column, p.n);
      if (!place.template all_full<ROWS>()) masks.copy(tile, stage);
      if (tile + 1 < part.y) masks.copy_place(tile + 1, stage ^ 1);
    };
    KeyRows{h.q, p.pitch_q, p.d}.template copy<ROWS>(shared, part.z, p.m);
    TilePlace place{0, 0};
    if (part.x < part.y) copy_tile(part.x, place = p.tiles[part.x], 0);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();

    u32 q[BLOCKS][KEY_COLUMNS / 16][4];
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
      for (int step = 0; step < KEY_COLUMNS / 16; ++step)
        load_fragment<KeyRows>(q[b][step], shared, warp_row + MMA_ROWS * b, step);
#pragma unroll 1
    for (int tile = part.x, stage = 0; tile < part.y; ++tile, stage ^= 1) {
      const TilePlace next = masks.place(stage ^ 1);
      if (tile + 1 < part.y) copy_tile(tile + 1, next, stage ^ 1);
      ptx::cp_async_commit();
      if (!place.is_empty(warp_row)) {
        const unsigned char* const keys = shared + Q_BYTES + stage * STAGE_BYTES;
        const Tile own{warp_row, place.is_full(warp_row), masks.of(stage) + warp_row,
                       p.lines + static_cast<i64>(tile) * ROWS};
        typename Tile::Products scores = {};
        multiply_rows<Element, KeyRows>(scores, [&](u32(&a)[4], int b, int step) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = q[b][step][i];
        }, keys, 0);
        weigh(own, scores);
        multiply_values<Element, ValueRows>(rows.out, scores, keys + K_BYTES, 0);
      }
      place = next;
      ptx::cp_async_wait<0>();
      __syncthreads();  // the next tile is there; and all have multiplied this one
    }
  }
};

}  // namespace sddmm
