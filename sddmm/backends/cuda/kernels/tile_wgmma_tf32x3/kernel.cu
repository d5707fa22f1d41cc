// SDDMM by dense tiles of float32 as 3xTF32 on Hopper: adds to tile_mma wgmma, and warpgroups that
// split b once a block instead of once a warp. Limit: a third of the tensor cores' TF32 rate, and
// shared memory, which three fifths of that rate keep busy.
#include "gemm_core/mainloop_wgmma_tf32x3.cuh"
#include "sddmm/sampled_warp.cuh"
#include "sddmm/tile_kernel.cuh"

using namespace sddmm;

// What tile_wgmma_tf32x3/host.py and kernels/tile.py choose, by macro.
struct Config {
  // The types of the operands and of the output.
  using Element = SDDMM_ELEMENT;
  using Output = SDDMM_OUTPUT;
  // The number of rows and of columns of a tile, and of elements of k that a stage holds.
  static constexpr int BLOCK_M = SDDMM_BLOCK_M, BLOCK_N = SDDMM_BLOCK_N, BLOCK_K = SDDMM_BLOCK_K;
  // The number of stages of the ring in shared memory.
  static constexpr int STAGES = SDDMM_STAGES;
  // Whether all rows of a, or of b, start at multiples of 16 bytes.
  static constexpr bool ALIGNED_A = SDDMM_ALIGNED_A, ALIGNED_B = SDDMM_ALIGNED_B;
  // The number of threads of a block, and of blocks that share a multiprocessor.
  static constexpr int THREADS = SDDMM_THREADS, MIN_BLOCKS = SDDMM_MIN_BLOCKS;
  // The number of bytes of shared memory for each of the 16 rows that a warp samples at once.
  static constexpr int ROW_BYTES = SDDMM_ROW_BYTES;
  // The number of bytes of dynamic shared memory of a block: the ring, then the rows of every warp.
  static constexpr int SHARED_BYTES = SDDMM_SHARED_BYTES;
};

using Element = Config::Element;
using Mainloop =
    gemm_core::MainloopWgmmaTf32x3<Config::STAGES, true, Config::ALIGNED_A, Config::ALIGNED_B>;
// Eight lanes sample a row together; each prefetches the columns of two nonzeros.
using Warp = SampledWarp<float, Mainloop::BN, 8, 2, Config::ROW_BYTES>;
// The number of warps that have sums; the others load.
constexpr int CONSUMER_WARPS = 4 * Mainloop::CONSUMER_WARPGROUPS;
static_assert(Mainloop::BM == Config::BLOCK_M && Mainloop::BN == Config::BLOCK_N &&
              Mainloop::BK == Config::BLOCK_K, "the main loop has one tile");
static_assert(Mainloop::THREADS == Config::THREADS, "the host launches producers and consumers");
static_assert(Mainloop::SHARED_BYTES + CONSUMER_WARPS * Warp::BYTES <= Config::SHARED_BYTES,
              "the ring and the rows of every warp fit");

using Arguments = TileArguments<Element, Config::Output>;
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::MIN_BLOCKS)
    sddmm_kernel(const Arguments p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  // Which tile of which head this block computes. The consumers find it again when they store: the
  // main loop leaves no registers in which to keep it.
  const auto find_head = [&] { return static_cast<int>(blockIdx.x) / p.tile_count; };
  const int head = find_head();
  const int2 coord = p.tiles[blockIdx.x - head * p.tile_count];
  const auto store = [&](const Mainloop::Accumulators& sums) {
    const int own_head = find_head(), index = blockIdx.x - own_head * p.tile_count;
    const int2 tile = p.tiles[index];
    const int warp = static_cast<int>(threadIdx.x - Mainloop::PRODUCER_THREADS) / 32;
    const int* const offsets = p.row_offsets.first_row(index, tile) +
                               static_cast<i64>(warp) * 16 * p.row_offsets.row_stride;
    Warp::Nonzeros nonzeros;
    nonzeros.load_ranges(offsets, p.row_offsets.row_stride);
    nonzeros.prefetch(p.cols);
    float* const staged =
        reinterpret_cast<float*>(shared + Mainloop::SHARED_BYTES + warp * Warp::BYTES);
    const Result<Element, Config::Output> result{p.out + own_head * p.head_out, p.values,
                                                 static_cast<float>(p.alpha)};
    result.permuted(p.perm, [&](const auto& store_nonzero) {
      Warp::sample(sums, 1.f, nonzeros, p.cols, tile.y * Mainloop::BN, staged, store_nonzero);
    });
  };
  Mainloop::run(shared, p.a + head * p.head_a, p.pitch_a, p.b + head * p.head_b, p.pitch_b,
                coord.x * Mainloop::BM, coord.y * Mainloop::BN, p.m, p.n, p.k, store);
}
