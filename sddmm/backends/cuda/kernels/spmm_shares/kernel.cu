// The shares of nonzeros and rows that the warps of spmm_gather sum: equal numbers for all blocks,
// whose ends move to the end of a row if one is near, so that few rows are cut. Adds a warp for
// each share, which searches the sorted row ids. Limit: the latency of some ten dependent loads.
#include "gemm_core/parameters.cuh"
#include "sddmm/row_shares.cuh"
#include "sddmm/search.cuh"

using namespace sddmm;

// What spmm_shares/host.py chooses, by macro.
struct Config {
  // The number of threads of a block.
  static constexpr int THREADS = SDDMM_THREADS;
  // The number of 64-bit words that the host keeps for State.
  static constexpr int STATE_WORDS = SDDMM_STATE_WORDS;
};

// What the blocks of a launch count together: rows that shares cut, their pieces, finished blocks.
struct State {
  unsigned long long cuts, pieces, finished;
};
static_assert(sizeof(State) == 8 * Config::STATE_WORDS, "spmm_shares/host.py allocates these words");

struct Arguments {
  const int* rows;  // (nnz,), ascending; of others all that is written is of no use
  RowShare* shares;
  // Where blocks of one warp list the rows that they cut: (blocks,) of both, of which `slots` has, in
  // .x, the piece of the row that begins before the share and, in .y, of the row that begins in it and
  // ends after it. Null where no list is asked for; then blocks that begin within a row are counted.
  int2* slots;
  CutRow* cut_rows;
  // Zero before the launch; the launch sets next_state to zero for its successor.
  State *state, *next_state;
  i64* results;  // pinned host memory, -1: the cuts and the pieces, which the host polls
  i64 nnz;
  i64 block_size;  // the number of nonzeros and rows of a block
  int m, blocks, warps;
  int aligns_warps;  // whether shares within a block, too, end where a row ends nearby
};
GEMM_CORE_CHECK_STRUCT(Arguments)

// Where a block begins: with which nonzero, and at which number. Nonzero i has number rows[i] + i,
// and a row the number after its last nonzero's.
struct Boundary {
  i64 nonzero, number;
};

// The least i of low .. high with is_past(i).
template <class IsPast>
__device__ __forceinline__ i64 search(i64 low, i64 high, const IsPast& is_past) {
  i64 lows[1] = {low}, highs[1] = {high};
  warp_lower_bound(lows, highs, [&](int, i64 i) { return is_past(i); });
  return lows[0];
}

// The boundary at `number`, or at the end of a row that is at most `near` nonzeros away, the nearest
// one; its nonzero is one of low .. high.
__device__ __forceinline__ Boundary boundary_near(const Arguments& p, i64 number, i64 near,
                                                  i64 low, i64 high) {
  const i64 i = search(low, high, [&](i64 at) { return p.rows[at] + at >= number; });
  if (near == 0 || i == 0 || i == p.nnz || p.rows[i - 1] != p.rows[i]) return {i, number};
  const i64 row = p.rows[i];
  low = i - near - 1 > 0 ? i - near - 1 : 0;
  high = i + near + 1 < p.nnz ? i + near + 1 : p.nnz;
  const i64 begin = search(low, i, [&](i64 at) { return p.rows[at] >= row; });
  const i64 end = search(i, high, [&](i64 at) { return p.rows[at] > row; });
  const i64 back = begin == 0 || begin > low ? i - begin : near + 1;
  const i64 ahead = end == p.nnz || end < high ? end - i : near + 1;
  if (back > near && ahead > near) return {i, number};
  const i64 nearest = back < ahead ? begin : end;
  return {nearest, nearest == 0 ? 0 : nearest + p.rows[nearest - 1]};
}

// Where block `index` begins.
__device__ __forceinline__ Boundary find_boundary(const Arguments& p, i64 index) {
  const i64 total = p.nnz + p.m;
  const i64 number = index * p.block_size < total ? index * p.block_size : total;
  return boundary_near(p, number, p.block_size / 4, number > p.m ? number - p.m : 0,
                       number < p.nnz ? number : p.nnz);
}

// Lists the row that begins in share `index` of a block of one warp, and ends after it: it has a piece
// in this share and in each later one up to the last that begins within the row.
__device__ __forceinline__ void list_cut_row(const Arguments& p, int index, const RowShare& share) {
  const i64 row = share.last;
  const i64 row_end = search(share.end, p.nnz, [&](i64 at) { return p.rows[at] > row; });
  // Boundary t is at nonzero t * block_size - row, unless the end of the row is near (find_boundary).
  const i64 near = p.block_size / 4;
  const i64 last_block = (row_end + row - near - 1) / p.block_size;
  // Rows that the analysis, which the host does not await first, finds wrong may be any numbers: no
  // slot outside the list is written.
  const int last = static_cast<int>(last_block < index      ? index
                                    : last_block < p.blocks ? last_block
                                                            : p.blocks - 1);
  const int count = last - index + 1, lane = static_cast<int>(threadIdx.x) % 32;
  int first = 0;
  if (lane == 0) {
    first = static_cast<int>(atomicAdd(&p.state->pieces, static_cast<unsigned long long>(count)));
    const unsigned long long number = atomicAdd(&p.state->cuts, 1ull);
    p.cut_rows[number] = {static_cast<int>(row), first, count};
    p.slots[index].y = first;
  }
  first = __shfl_sync(FULL_MASK, first, 0);
  for (int i = 1 + lane; i < count; i += 32) p.slots[index + i].x = first + i;
}

// The share of a warp of a block.
__device__ __forceinline__ void find_share(const Arguments& p, int block, int warp) {
  const Boundary first = find_boundary(p, block), last = find_boundary(p, block + 1);
  const i64 size = last.number - first.number, near = p.aligns_warps ? size / (4 * p.warps) : 0;
  auto boundary_of = [&](int part) {
    if (part == 0 || part == p.warps) return part == 0 ? first : last;
    const i64 number = first.number + size * part / p.warps;
    return boundary_near(p, number, near, first.nonzero, last.nonzero);
  };
  const Boundary ends[2] = {boundary_of(warp), boundary_of(warp + 1)};
  const i64 begin = ends[0].nonzero, end = ends[1].nonzero;
  auto row_of = [&](i64 i) { return i >= 0 && i < p.nnz ? p.rows[i] : -1; };
  const RowShare share{begin,
                       end,
                       static_cast<int>(ends[0].number - begin),
                       static_cast<int>(ends[1].number - end),
                       row_of(begin - 1),
                       row_of(end - 1),
                       row_of(end)};
  const bool is_first_lane = threadIdx.x % 32 == 0;
  if (is_first_lane) p.shares[static_cast<i64>(block) * p.warps + warp] = share;
  const bool begins_within = share.before >= 0 && share.before == row_of(begin);
  if (p.cut_rows == nullptr) {
    if (is_first_lane && warp == 0 && begins_within) atomicAdd(&p.state->cuts, 1ull);
    return;
  }
  const bool is_whole = begins_within && share.before == share.after;  // the share is of one row
  if (share.last >= 0 && share.last == share.after && !is_whole) list_cut_row(p, block, share);
}

extern "C" __global__ void __launch_bounds__(Config::THREADS) sddmm_kernel(const Arguments p) {
  const int share = blockIdx.x * (Config::THREADS / 32) + threadIdx.x / 32;
  const int block = share / p.warps;
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.next_state = State{};
  if (block < p.blocks) find_share(p, block, share - block * p.warps);
  // What the block wrote and counted must be visible before the block counts as finished.
  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(&p.state->finished, 1ull) + 1 < gridDim.x) return;
  p.results[1] = static_cast<i64>(atomicAdd(&p.state->pieces, 0ull));
  p.results[0] = static_cast<i64>(atomicAdd(&p.state->cuts, 0ull));
}
