// The shared memory through which the consumer warpgroups of a wgmma main loop hand their sums to
// the warps that store: a ring of slots for each warpgroup, each with 32 rows of sums.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/mbarrier.cuh"
#include "gemm_core/ptx/stmatrix.cuh"
#include "gemm_core/stage_barriers.cuh"
#include "sddmm/value.cuh"

namespace sddmm {

// The slots hold rows of COLUMNS sums, converted to STAGED, PITCH elements apart. ROW_BLOCKS: the
// blocks of 64 rows that each of the WARPGROUPS has of a tile; a block fills two slots, the first
// with rows 0 to 7 of each 16, the second with the others. SLOTS: the number of slots of each
// warpgroup. READERS: the number of warps that read a slot.
template <class STAGED, int COLUMNS, int ROW_BLOCKS, int WARPGROUPS, int PITCH, int SLOTS, int READERS>
struct StagingRing {
  using Element = STAGED;
  static constexpr int ROW_COLUMNS = COLUMNS;
  static constexpr int PARTS = 2, ROWS = 64 / PARTS;  // of a block
  static constexpr int GROUPS = ROW_BLOCKS * WARPGROUPS, ALL_SLOTS = WARPGROUPS * SLOTS;
  static constexpr int WRITERS = 128;  // the threads of a warpgroup
  static constexpr int SLOT_ELEMENTS = ROWS * PITCH;
  static constexpr int SLOT_BYTES = SLOT_ELEMENTS * sizeof(STAGED);
  static constexpr int BYTES = ALL_SLOTS * (SLOT_BYTES + 2 * gemm_core::StageBarriers::BYTES);
  // Rows a multiple of 128 bytes apart fall into the same banks, so their columns are XORed with
  // the row, in groups of eight. Other pitches are chosen so that rows fall into different banks.
  static constexpr bool SWIZZLED = PITCH * sizeof(STAGED) % 128 == 0;
  static constexpr int SWIZZLE_ROWS = 16 / sizeof(STAGED);
  static_assert(COLUMNS % 32 == 0 && COLUMNS <= PITCH && PITCH * sizeof(STAGED) % 16 == 0, "");
  static_assert(!SWIZZLED || PITCH % (8 * SWIZZLE_ROWS) == 0, "columns stay in their row");

  unsigned char* memory;  // BYTES, a multiple of 16

  // Initialises the barriers; called by all threads before a barrier of the block.
  __device__ __forceinline__ void initialise() const {
    if (threadIdx.x >= ALL_SLOTS) return;
    gemm_core::ptx::mbarrier_init(full_barriers()[threadIdx.x], WRITERS);
    gemm_core::ptx::mbarrier_init(empty_barriers()[threadIdx.x], 32 * READERS);
  }

  // The slot of a part of a warpgroup's `block`-th 64 rows of a tile, and how often it was filled
  // before, modulo 2. `tile` counts the tiles of this block.
  struct Slot {
    u32 index, phase;

    __device__ __forceinline__ Slot(u32 tile, int block, int warpgroup, int part) {
      const u32 sequence = (tile * ROW_BLOCKS + block) * PARTS + part;
      index = warpgroup * SLOTS + sequence % SLOTS;
      phase = sequence / SLOTS % 2;
    }
  };

  // The slot that is filled as the `turn`-th of a tile: parts of blocks in their order, each of all
  // warpgroups.
  static __device__ __forceinline__ Slot slot_of_turn(u32 tile, int turn) {
    return Slot(tile, turn / (PARTS * WARPGROUPS), turn % WARPGROUPS, turn / WARPGROUPS % PARTS);
  }

  // Hands on a warpgroup's sums, times `scale`, of its `block`-th 64 rows.
  __device__ __forceinline__ void write(u32 tile, int block, int warpgroup,
                                        const float (&sums)[COLUMNS / 2], float scale) const {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      const Slot slot(tile, block, warpgroup, part);
      gemm_core::ptx::mbarrier_wait(empty_barriers()[slot.index], slot.phase ^ 1);
      if (scale == 1)
        write_part(slot.index, part, sums, [](float sum) { return sum; });
      else
        write_part(slot.index, part, sums, [&](float sum) { return scale * sum; });
      // Every thread arrives for its own stores: racecheck follows no order by __syncwarp.
      gemm_core::ptx::mbarrier_arrive(full_barriers()[slot.index]);
    }
  }

  // Waits for a slot to be filled.
  __device__ __forceinline__ const STAGED* wait(const Slot& slot) const {
    gemm_core::ptx::mbarrier_wait(full_barriers()[slot.index], slot.phase);
    return slots() + slot.index * SLOT_ELEMENTS;
  }
  // Signals that this thread has read the slot; all of a warp call it.
  __device__ __forceinline__ void release(const Slot& slot) const {
    gemm_core::ptx::mbarrier_arrive(empty_barriers()[slot.index]);
  }

  // The row of a block of 64 that is row `row` of the slot of a part.
  static __device__ __forceinline__ int row_of_block(int part, int row) {
    return row / 8 * 16 + part * 8 + row % 8;
  }
  // The element of a slot with the sum of this row and column.
  static __device__ __forceinline__ int element(int row, int column) {
    return row * PITCH + (column ^ swizzle(row));
  }

 private:
  static __device__ __forceinline__ int swizzle(int row) {
    return SWIZZLED ? row % SWIZZLE_ROWS * 8 : 0;
  }
  __device__ __forceinline__ STAGED* slots() const { return reinterpret_cast<STAGED*>(memory); }
  __device__ __forceinline__ gemm_core::StageBarriers full_barriers() const {
    return {gemm_core::ptx::shared_address(memory) + ALL_SLOTS * SLOT_BYTES};
  }
  __device__ __forceinline__ gemm_core::StageBarriers empty_barriers() const {
    return {full_barriers()[ALL_SLOTS]};
  }

  // A thread has pairs of sums in two rows, eight rows apart (fragment.cuh: wgmma_d).
  template <class Scale>
  __device__ __forceinline__ void write_part(u32 slot, int part, const float (&sums)[COLUMNS / 2],
                                             const Scale& scale) const {
    using Numeric = gemm_core::Numeric<STAGED>;
    if constexpr (sizeof(STAGED) == 2) {
      // A warp stores 8 x 32 sums at once. Their columns differ in the low bits that are XORed from
      // those of the next 8 x 32, and are the same again after 64.
      const int row = threadIdx.x % 128 / 32 * 8 + threadIdx.x % 8;
      const int column = threadIdx.x % 32 / 8 * 8;
      const u32 own = gemm_core::ptx::shared_address(slots() + slot * SLOT_ELEMENTS + row * PITCH);
      const u32 even = own + (column ^ swizzle(row)) * 2;
      const u32 odd = own + ((column + 32) ^ swizzle(row)) * 2;
#pragma unroll
      for (int from = 0; from < COLUMNS; from += 32) {
        u32 pairs[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int i = from / 2 + 4 * j + 2 * part;
          pairs[j] = Numeric::pair(scale(sums[i]), scale(sums[i + 1]));
        }
        gemm_core::ptx::stmatrix_x4((from % 64 == 0 ? even : odd) + from / 64 * 128, pairs);
      }
    } else {
      const auto at = gemm_core::fragment::wgmma_d(threadIdx.x % 128, 0);
      const int row = at.row / 16 * 8 + at.row % 8, mask = swizzle(row);
      STAGED* const own = slots() + slot * SLOT_ELEMENTS + row * PITCH + at.column;
#pragma unroll
      for (int column = 0; column < COLUMNS; column += 8) {
        const int i = column / 2 + 2 * part;
        // Only low bits of a column change, so that the rest stays a constant of the address.
        *reinterpret_cast<typename Numeric::Pair*>(own + column / 64 * 64 + (column % 64 ^ mask)) =
            Numeric::pair(scale(sums[i]), scale(sums[i + 1]));
      }
    }
  }
};

}  // namespace sddmm
