// The warps that sample the sums of a wgmma main loop: they load those of the nonzeros from the
// slots of a StagingRing and store them, while the consumers multiply the next tile.
#pragma once

#include "sddmm/sampled_output.cuh"
#include "sddmm/staging_ring.cuh"
#include "sddmm/tile_rows.cuh"
#include "sddmm/tile_segments.cuh"

namespace sddmm {

// One of these warps. LANES_PER_ROW lanes sample a row together, each DEPTH nonzeros of it at once.
// Eight lanes a row sample all of the warp's rows of a slot at once; a whole warp for each row
// samples eight nonzeros a lane at once. SEGMENTS: columns strictly ascend within a row and often
// are consecutive; where those of all rows are, the rows are stored as segments, and the columns of
// their nonzeros are not read.
template <class Ring, class Output, int LANES_PER_ROW, int DEPTH, bool SEGMENTS, bool ONE_LEADS>
struct TileSampler {
  using Staged = typename Ring::Element;
  using Rows = TileRows<Ring, SEGMENTS>;
  static constexpr int BATCH_ROWS = LANES_PER_ROW == 32 ? 8 / DEPTH : Rows::WARP_ROWS;
  static constexpr int ROWS_AT_ONCE = 32 / LANES_PER_ROW, ROWS_PER_LANE = BATCH_ROWS / ROWS_AT_ONCE;
  static constexpr int BATCHES = Rows::WARP_ROWS / BATCH_ROWS;
  static_assert(ROWS_PER_LANE * ROWS_AT_ONCE * BATCHES == Rows::WARP_ROWS, "");
  // The number of slots of a tile, and of slots whose columns are prefetched, as registers allow.
  static constexpr int SLOTS = Ring::GROUPS * Ring::PARTS;
  static constexpr int AHEAD = BATCHES == 1 && DEPTH <= 3 && Ring::GROUPS == 2 ? 2 : 1;
  static_assert(SLOTS % AHEAD == 0, "");

  // A tile: its rows, its first column, and the output of its head.
  struct Tile {
    Rows rows;
    int n0;
    Output output;
  };
  // The warp's rows of one slot.
  struct SlotRows {
    const Tile& tile;
    int group, part;
  };
  // This lane's first nonzeros of a batch of rows: first[h] + d * LANES_PER_ROW is the d-th of the
  // h-th row. at: its column when that is loaded, then the byte of its sum in the slot; -1 if there
  // is none.
  struct Entries {
    int first[ROWS_PER_LANE], at[ROWS_PER_LANE][DEPTH];
  };

  Ring ring;
  const int* cols;
  int warp;  // among those that sample

  // Samples all tiles of a scheduler. find(number) returns where a tile is; load(place, tile) loads
  // what is known of it without its columns. Each load is issued long before what depends on it.
  template <class TileScheduler, class Find, class Load>
  __device__ __forceinline__ void run(TileScheduler scheduler, const Find& find,
                                      const Load& load) const {
    Tile tile, following;
    Entries entries[AHEAD];
    load(find(scheduler.tile), tile);
    tile.rows.find_runs(cols);
#pragma unroll
    for (int slot = 0; slot < AHEAD; ++slot) prefetch(entries[slot], rows_of(tile, slot), 0);
    auto next_place = find(scheduler.after(1));
    for (u32 count = 0; scheduler.has_tile(); ++count) {
      load(next_place, following);
      scheduler.advance();
      next_place = find(scheduler.after(1));
#pragma unroll 1
      for (int first = 0; first < SLOTS; first += AHEAD) {
        if (first + AHEAD >= SLOTS) following.rows.find_runs(cols);
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
          const int ahead = first + i + AHEAD;
          sample_slot(entries[i], rows_of(tile, first + i), count, [&] {
            if (ahead < SLOTS)
              prefetch(entries[i], rows_of(tile, ahead), 0);
            else
              prefetch(entries[i], rows_of(following, ahead - SLOTS), 0);
          });
        }
      }
      tile = following;
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  // The rows of a tile's slot. The warpgroups take turns, as both wait for slots at the same time.
  static __device__ __forceinline__ SlotRows rows_of(const Tile& tile, int slot) {
    if (ONE_LEADS) return {tile, slot / 2, slot % 2};
    return {tile, slot / 4 * 2 + slot % 2, slot / 2 % 2};
  }
  // A lane's h-th row of a batch, among the warp's rows of a slot.
  static __device__ __forceinline__ int row_of(int batch, int h) {
    return batch * BATCH_ROWS + lane() / LANES_PER_ROW + h * ROWS_AT_ONCE;
  }
  static __device__ __forceinline__ int of_row(const int (&held)[Rows::GROUPS], const SlotRows& rows,
                                               int batch, int h) {
    return __shfl_sync(FULL_MASK, Rows::of_group(held, rows.group),
                       Rows::owner(rows.part, row_of(batch, h)));
  }

  // Loads the columns of a batch, unless its rows are stored as segments.
  __device__ __forceinline__ void prefetch(Entries& entries, const SlotRows& rows, int batch) const {
    if (rows.tile.rows.all_contiguous(rows.group)) return;
#pragma unroll
    for (int h = 0; h < ROWS_PER_LANE; ++h) {
      const int first = of_row(rows.tile.rows.begin, rows, batch, h) + lane() % LANES_PER_ROW;
      const int end = of_row(rows.tile.rows.end, rows, batch, h);
      entries.first[h] = first;
#pragma unroll
      for (int d = 0; d < DEPTH; ++d) {
        const bool exists = first + d * LANES_PER_ROW < end;
        entries.at[h][d] = exists ? cols[first + d * LANES_PER_ROW] : -1;
      }
    }
  }

  // Finds the sums of the loaded columns.
  __device__ __forceinline__ void locate(Entries& entries, int n0, int batch) const {
#pragma unroll
    for (int h = 0; h < ROWS_PER_LANE; ++h)
#pragma unroll
      for (int d = 0; d < DEPTH; ++d) {
        int& at = entries.at[h][d];
        at = at < 0 ? -1 : element(batch, h, at - n0) * static_cast<int>(sizeof(Staged));
        asm volatile("" : "+r"(at));  // otherwise the compiler computes it after the wait
      }
  }

  // Samples a slot, of whose first batch the columns are loaded; prefetch_next() loads those of the
  // next slot. All that can be is done before the wait, as consumers may wait for the slot in turn.
  template <class PrefetchNext>
  __device__ __forceinline__ void sample_slot(Entries& entries, const SlotRows& rows, u32 count,
                                              const PrefetchNext& prefetch_next) const {
    const typename Ring::Slot filled(count, rows.group / 2, rows.group % 2, rows.part);
    const Tile& tile = rows.tile;
    if (tile.rows.all_contiguous(rows.group)) {
      TileSegments<Ring, Rows, Output>::store(ring.wait(filled), warp, tile.rows, rows.group,
                                              rows.part, tile.n0, tile.output);
      prefetch_next();
    } else if constexpr (BATCHES == 1) {
      Entries current = entries;
      locate(current, tile.n0, 0);
      prefetch_next();
      sample(ring.wait(filled), current, rows, 0);
    } else {
      // The columns of each batch are loaded before the one before it is sampled.
      const Staged* const slot = ring.wait(filled);
#pragma unroll 1
      for (int batch = 0; batch < BATCHES; ++batch) {
        Entries current = entries;
        if (batch + 1 < BATCHES) prefetch(entries, rows, batch + 1);
        locate(current, tile.n0, batch);
        sample(slot, current, rows, batch);
      }
      prefetch_next();
    }
    ring.release(filled);
  }

  // Stores the sums of a batch.
  __device__ __forceinline__ void sample(const Staged* slot, const Entries& entries,
                                         const SlotRows& rows, int batch) const {
    Staged sums[ROWS_PER_LANE][DEPTH];
#pragma unroll
    for (int h = 0; h < ROWS_PER_LANE; ++h)
#pragma unroll
      for (int d = 0; d < DEPTH; ++d)
        if (entries.at[h][d] >= 0)
          sums[h][d] = *reinterpret_cast<const Staged*>(reinterpret_cast<const char*>(slot) +
                                                        entries.at[h][d]);
    rows.tile.output.template store<LANES_PER_ROW>(entries.first, entries.at, sums);
    sample_rest(slot, entries, rows, batch);
  }

  // Stores the sums of the nonzeros that were not prefetched.
  __device__ __forceinline__ void sample_rest(const Staged* slot, const Entries& entries,
                                              const SlotRows& rows, int batch) const {
    const Rows& held = rows.tile.rows;
    const int nnz = Rows::of_group(held.end, rows.group) - Rows::of_group(held.begin, rows.group);
#pragma unroll 1
    for (int d = DEPTH; !__all_sync(FULL_MASK, nnz <= d * LANES_PER_ROW); ++d) {
      int nonzeros[ROWS_PER_LANE], at[ROWS_PER_LANE][1];
      Staged sums[ROWS_PER_LANE][1];
#pragma unroll
      for (int h = 0; h < ROWS_PER_LANE; ++h) {
        nonzeros[h] = entries.first[h] + d * LANES_PER_ROW;
        at[h][0] = nonzeros[h] < of_row(held.end, rows, batch, h) ? cols[nonzeros[h]] : -1;
      }
#pragma unroll
      for (int h = 0; h < ROWS_PER_LANE; ++h)
        if (at[h][0] >= 0) sums[h][0] = slot[element(batch, h, at[h][0] - rows.tile.n0)];
      rows.tile.output.template store<1>(nonzeros, at, sums);
    }
  }

  // The element of a slot with a sum of the h-th row, of which the last may not exist.
  __device__ __forceinline__ int element(int batch, int h, int column) const {
    return Ring::element((Rows::first_row(warp) + row_of(batch, h)) % Ring::ROWS, column);
  }
};

}  // namespace sddmm
