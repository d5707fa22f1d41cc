// The warps that sample the sums of a wgmma main loop by lists: for each slot of a StagingRing, where
// each nonzero's sum is and where it goes, in the order in which the slots are filled.
#pragma once

#include "sddmm/listed_tiles.cuh"
#include "sddmm/staging_ring.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

// A position in the lists: a batch of a slot of a tile, which is loaded next.
template <int SLOTS, class TileScheduler>
struct ListCursor {
  static constexpr int TILES = 32 / SLOTS;  // known at once: lane i has slot i % SLOTS of one of them
  const int* all_starts;
  ListedTiles tiles;
  TileScheduler scheduler;
  int starts, ends;        // of a lane's slot
  int holder, begin, end;  // the lane that has this slot, and what is left of the slot

  __device__ __forceinline__ ListCursor(const int* all_starts_, const ListedTiles& tiles_,
                                        const TileScheduler& scheduler_)
      : all_starts(all_starts_), tiles(tiles_), scheduler(scheduler_) {
    load();
    find_range();
  }

  // To the next slot, of the next tile after the last.
  __device__ __forceinline__ void next_slot() {
    if (++holder == TILES * SLOTS) load();
    find_range();
  }

 private:
  __device__ __forceinline__ void load() {
    const int own = threadIdx.x % 32;
    const int tile = own < TILES * SLOTS ? tiles.number(scheduler.after(own / SLOTS)) : -1;
    starts = 0, ends = 0, holder = 0;
    scheduler.advance(TILES);
    if (tile < 0) return;
    const int* const slot = all_starts + static_cast<i64>(tile) * SLOTS + own % SLOTS;
    starts = slot[0], ends = slot[1];
  }
  __device__ __forceinline__ void find_range() {
    begin = __shfl_sync(FULL_MASK, starts, holder);
    end = __shfl_sync(FULL_MASK, ends, holder);
  }
};

// THREADS threads share the entries of a slot, DEPTH of each at once. A thread copies its own entries
// to shared memory, AHEAD batches before it samples them. Registers would hold as many only in code
// that is unrolled by them, and such code takes longer to fetch than to run: one warp of a scheduler
// samples, and waits for all of its instructions.
template <class Ring, class Output, int THREADS, int DEPTH, int AHEAD>
struct ListSampler {
  using Staged = typename Ring::Element;
  static constexpr int SLOTS = Ring::GROUPS * Ring::PARTS;
  static constexpr int BYTES = AHEAD * DEPTH * THREADS * 8;  // of `copies`
  static_assert(AHEAD <= 32, "a bit for each");
  // A batch of entries of one slot; at = 0: there is none.
  struct Batch {
    int positions[DEPTH], at[DEPTH];
  };

  Ring ring;
  const int2* entries;  // these two as in ListedArguments
  const int* slot_starts;
  int2* copies;  // in shared memory
  int thread;    // among those that sample

  // Samples all tiles of a scheduler, which has one at least. output_of(head) says where the results
  // of a head go.
  template <class TileScheduler, class OutputOf>
  __device__ __forceinline__ void run(TileScheduler scheduler, const ListedTiles& tiles,
                                      const OutputOf& output_of) const {
    ListCursor<SLOTS, TileScheduler> cursor(slot_starts, tiles, scheduler);
    u32 lasts = 0;  // bit i: whether the batch that is sampled i batches later is the last of its slot
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) lasts |= begin_copy(cursor, i) << i;
    Output output = output_of(tiles.head(scheduler.tile));
    u32 count = 0;  // of the tiles before
    int slot = 0, part = 0;
    const Staged* staged = nullptr;
    for (bool is_first = true;; part = part + 1 < AHEAD ? part + 1 : 0) {
      gemm_core::ptx::cp_async_wait<AHEAD - 1>();
      const Batch batch = copied(part);
      const bool is_last = lasts & 1;
      lasts = lasts >> 1 | begin_copy(cursor, part) << (AHEAD - 1);
      const typename Ring::Slot filled = Ring::slot_of_turn(count, slot);
      if (is_first) staged = ring.wait(filled);
      sample(staged, batch, output);
      is_first = is_last;
      if (!is_first) continue;
      ring.release(filled);
      if (++slot < SLOTS) continue;
      slot = 0, ++count;
      scheduler.advance();
      if (!scheduler.has_tile()) return;
      output = output_of(tiles.head(scheduler.tile));
    }
  }

 private:
  __device__ __forceinline__ int2* copy(int part, int d) const {
    return copies + (part * DEPTH + d) * THREADS + thread;
  }
  // Begins to copy the next batch; returns whether it is the last of its slot.
  template <class Cursor>
  __device__ __forceinline__ u32 begin_copy(Cursor& cursor, int part) const {
    const u32 target = gemm_core::ptx::shared_address(copy(part, 0));
    const int2* const from = entries + cursor.begin + thread;
    const int left = cursor.end - cursor.begin - thread;
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
      gemm_core::ptx::cp_async_8(target + d * THREADS * 8, from + d * THREADS, d * THREADS < left);
    gemm_core::ptx::cp_async_commit();
    cursor.begin += THREADS * DEPTH;
    const bool is_last = cursor.begin >= cursor.end;
    if (is_last) cursor.next_slot();
    return is_last;
  }
  __device__ __forceinline__ Batch copied(int part) const {
    Batch batch;
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      const int2 entry = *copy(part, d);
      batch.positions[d] = entry.x, batch.at[d] = entry.y;
    }
    return batch;
  }

  static __device__ __forceinline__ void sample(const Staged* staged, const Batch& batch,
                                                const Output& output) {
    Staged sums[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
      if (batch.at[d] > 0) sums[d] = staged[batch.at[d] - 1];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
      if (batch.at[d] > 0) output.out[batch.positions[d]] = Output::result(sums[d]);
  }
};

}  // namespace sddmm
