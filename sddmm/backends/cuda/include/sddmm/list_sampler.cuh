// The warps that sample the sums of a wgmma main loop by lists: for each slot of a StagingRing, where
// each nonzero's sum is and where it goes, in the order in which the slots are filled.
#pragma once

#include "sddmm/staging_ring.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

// The entries of all slots of all tiles, one after the other (slot_lists.py).
struct SlotLists {
  const int2* entries;  // the position of a nonzero, and the element of the slot with its sum
  const int* starts;    // of each slot, then of what follows the last
};

// A position in the lists: a batch of a slot of a tile, which is loaded next.
template <int SLOTS, class TileScheduler, class Find>
struct ListCursor {
  const int* all_starts;
  const Find& find;  // find(index) returns a tile's number in the lists; -1 if there is none
  TileScheduler scheduler;
  int starts, next_starts;  // lane i has the start of slot i of this tile, and of the next
  int slot = 0, begin, end;

  __device__ __forceinline__ ListCursor(const int* all_starts_, const Find& find_,
                                        const TileScheduler& scheduler_)
      : all_starts(all_starts_), find(find_), scheduler(scheduler_) {
    starts = load_starts(find(scheduler.tile));
    next_starts = load_starts(find(scheduler.following()));
    find_range();
  }

  // To the next slot, of the next tile after the last.
  __device__ __forceinline__ void next_slot() {
    if (++slot == SLOTS) {
      slot = 0;
      scheduler.advance();
      starts = next_starts;
      next_starts = load_starts(find(scheduler.following()));
    }
    find_range();
  }

 private:
  __device__ __forceinline__ int load_starts(int tile) const {
    const int lane = threadIdx.x % 32;
    return tile >= 0 && lane <= SLOTS ? all_starts[static_cast<i64>(tile) * SLOTS + lane] : 0;
  }
  __device__ __forceinline__ void find_range() {
    begin = __shfl_sync(FULL_MASK, starts, slot);
    end = __shfl_sync(FULL_MASK, starts, slot + 1);
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
  // A batch of entries of one slot; at < 0: there is none.
  struct Batch {
    int positions[DEPTH], at[DEPTH];
  };

  Ring ring;
  SlotLists lists;
  int2* copies;  // in shared memory
  int thread;    // among those that sample

  // Samples all tiles of a scheduler. find: as in ListCursor. output_of(index) says where the results
  // of a tile go.
  template <class TileScheduler, class Find, class OutputOf>
  __device__ __forceinline__ void run(TileScheduler scheduler, const Find& find,
                                      const OutputOf& output_of) const {
    ListCursor<SLOTS, TileScheduler, Find> cursor(lists.starts, find, scheduler);
    u32 lasts = 0;  // bit i: whether the batch that is sampled i batches later is the last of its slot
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) lasts |= begin_copy(cursor, i) << i;
    Output output = output_of(scheduler.tile);
    u32 count = 0;  // of the tiles before
    int slot = 0, part = 0;
    const Staged* staged = nullptr;
    for (bool is_first = true;; part = part + 1 < AHEAD ? part + 1 : 0) {
      gemm_core::ptx::cp_async_wait<AHEAD - 1>();
      const Batch batch = copied(part);
      const bool is_last = lasts & 1;
      lasts = lasts >> 1 | begin_copy(cursor, part) << (AHEAD - 1);
      // The two warpgroups take turns, as both fill their slots at the same time.
      const typename Ring::Slot filled(count, 0, slot % 2, slot / 2);
      if (is_first) staged = ring.wait(filled);
      sample(staged, batch, output);
      is_first = is_last;
      if (!is_first) continue;
      ring.release(filled);
      if (++slot < SLOTS) continue;
      slot = 0, ++count;
      scheduler.advance();
      if (!scheduler.has_tile()) return;
      output = output_of(scheduler.tile);
    }
  }

 private:
  __device__ __forceinline__ int2* copy(int part, int d) const {
    return copies + (part * DEPTH + d) * THREADS + thread;
  }
  // Begins to copy the next batch; returns whether it is the last of its slot.
  template <class Cursor>
  __device__ __forceinline__ u32 begin_copy(Cursor& cursor, int part) const {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      const int i = cursor.begin + thread + d * THREADS;
      if (i < cursor.end)
        gemm_core::ptx::cp_async_8(gemm_core::ptx::shared_address(copy(part, d)), lists.entries + i);
      else
        *copy(part, d) = int2{0, -1};
    }
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
      if (batch.at[d] >= 0) sums[d] = staged[batch.at[d]];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
      if (batch.at[d] >= 0) output.out[batch.positions[d]] = Output::result(sums[d]);
  }
};

}  // namespace sddmm
