"""The GPU kernels, one line each."""

from __future__ import annotations

from sddmm.backends.cuda.cost_model import TileRate
from sddmm.backends.cuda.kernels.attention_gather.host import ATTENTION_GATHER
from sddmm.backends.cuda.kernels.attention_scores.host import AttentionScores
from sddmm.backends.cuda.kernels.attention_tile.host import ATTENTION_TILE, ATTENTION_TILE_SIMT
from sddmm.backends.cuda.kernels.block import BlockKernel, BlockRate
from sddmm.backends.cuda.kernels.block_mma.host import block_mma
from sddmm.backends.cuda.kernels.block_simt.host import block_simt
from sddmm.backends.cuda.kernels.gather_lines.host import GATHER_LINES
from sddmm.backends.cuda.kernels.hybrid.host import Hybrid
from sddmm.backends.cuda.kernels.row_gather.host import ROW_GATHER
from sddmm.backends.cuda.kernels.spmm_gather.host import SPMM_GATHER
from sddmm.backends.cuda.kernels.spmm_tile.host import SPMM_TILES
from sddmm.backends.cuda.kernels.spmm_windows.host import SPMM_WINDOWS
from sddmm.backends.cuda.kernels.tile import TileKernel
from sddmm.backends.cuda.kernels.tile_mma.host import tile_mma
from sddmm.backends.cuda.kernels.tile_simt.host import tile_simt
from sddmm.backends.cuda.kernels.tile_warp.host import tile_warp
from sddmm.backends.cuda.kernels.tile_wgmma.host import tile_wgmma
from sddmm.backends.cuda.kernels.tile_wgmma_async.host import StagingSlots, tile_wgmma_async
from sddmm.backends.cuda.kernels.tile_wgmma_listed.host import tile_wgmma_listed
from sddmm.backends.cuda.kernels.tile_wgmma_panel.host import tile_wgmma_panel
from sddmm.backends.cuda.kernels.tile_wgmma_tf32x3.host import tile_wgmma_tf32x3
from sddmm.backends.cuda.kernels.tile_wmma.host import tile_wmma
from sddmm.backends.cuda.kernels.windows.host import WINDOWS
from sddmm.backends.cuda.spec import AttentionKernel, GpuKernel, KernelSpec, ProductKernel

# Rates are measured on an H200 of 132 multiprocessors (docs/results/h200).
TILE_KERNELS: tuple[TileKernel, ...] = (
    tile_wgmma(128, 256, 256, TileRate(
        flops=900e12, fixed_us=9.4e-3, nonzero_ps=9.4, run_ps=-5.7, round_ps=256, start_us=0.9,
        unaligned=(1.4, 1.4),
    )),
    tile_wgmma(128, 224, 256, TileRate(
        flops=824e12, fixed_us=11.3e-3, nonzero_ps=7.9, run_ps=-4.8, round_ps=291, start_us=0.2,
        overlap=1.17, unaligned=(1.4, 1.4),
    )),
    tile_wgmma(256, 152, 176, TileRate(
        flops=856e12, fixed_us=6.6e-3, nonzero_ps=15.3, run_ps=4.8, start_us=0.8,
        unaligned=(1.4, 1.4),
    )),
    tile_wgmma_async((128, 256), 3, StagingSlots(1, 1024), StagingSlots(2, 512), TileRate(
        flops=777e12, fixed_us=15.6e-3, nonzero_ps=5.6, run_ps=-0.8, round_ps=200, start_us=0.2,
        overlap=1.73, unaligned=(2.4, 2.4),
    ), lead=1),
    tile_wgmma_async((128, 224), 3, StagingSlots(1, 896), StagingSlots(2, 464), TileRate(
        flops=759e12, fixed_us=18.4e-3, nonzero_ps=5.6, run_ps=-2.1, round_ps=213, overlap=2.09,
        unaligned=(2.4, 2.4),
    ), lead=0),
    tile_wgmma_listed(256, TileRate(
        flops=761e12, fixed_us=7.2e-3, nonzero_ps=3.6, start_us=1.2, overlap=1.9,
        unaligned=(2.0, 2.0),
    )),
    tile_wgmma_panel(256, TileRate(
        flops=940e12, fixed_us=8.2e-3, nonzero_ps=3.62, start_us=0.9, overlap=1.85,
        unaligned=(2.0, 2.0),
    )),
    tile_mma("tile_mma_128x128x64", (128, 128, 64), (2, 2), 3, 2, rate=TileRate(
        flops=545e12, fixed_us=10.7e-3, nonzero_ps=4.3, run_ps=-1.7, round_ps=43, segment_us=25e-3,
        full_us=21e-3, scaled_ps=5.0, scaled_segment_ps=1.0, start_us=1.2,
        unaligned=(2.2, 10.5),
    )),
    tile_mma("tile_mma_64x64x32", (64, 64, 32), (2, 2), 3, 4, rate=TileRate(
        flops=311e12, fixed_us=2.6e-3, nonzero_ps=2.7, run_ps=-0.5, round_ps=26, segment_us=6.2e-3,
        full_us=3.75e-3, scaled_ps=2.4, scaled_segment_ps=0.5,
        unaligned=(3.1, 5.0),
    ), hopper_min_blocks=5, short_min_blocks=8),
    tile_mma("tile_mma_tf32_64x64x32", (64, 64, 32), (2, 2), 3, 3, "tf32", TileRate(
        flops=150e12, fixed_us=3e-3, nonzero_ps=1.5, run_ps=4, scaled_ps=2.6, scaled_segment_ps=0.6,
    )),
    tile_mma("tile_mma_tf32x3_64x64x32", (64, 64, 32), (2, 2), 3, 2, "tf32x3", TileRate(
        flops=45e12, fixed_us=3e-3, nonzero_ps=1.5, run_ps=4, scaled_ps=2.6, scaled_segment_ps=0.6,
    )),
    tile_warp(16, (8, 3), TileRate(
        flops=81e12, fixed_us=0.155e-3, nonzero_ps=2.2, run_ps=12, round_ps=77, segment_us=0.62e-3,
        full_us=0.39e-3, scaled_ps=2.0, scaled_segment_ps=1.7, start_us=0.65, overlap=6,
        unaligned=(1.35, 2.7),
    )),
    tile_warp(32, (4, 2), TileRate(
        flops=175e12, fixed_us=0.49e-3, nonzero_ps=7.8, round_ps=236, segment_us=2.1e-3,
        full_us=1.47e-3, scaled_ps=2.2, scaled_segment_ps=2.0, start_us=1.5, overlap=1.1,
        unaligned=(1.8, 2.9),
    )),
    tile_wgmma_tf32x3(TileRate(
        flops=114e12, fixed_us=23e-3, nonzero_ps=1.3, run_ps=6, scaled_ps=4.0,
        scaled_segment_ps=1.0,
    )),
    tile_simt((16, 32, 32), (4, 4), 16, TileRate(
        flops=31.5e12, fixed_us=0.6e-3, nonzero_ps=1.6, segment_us=0.78e-3, scaled_ps=6.8,
        scaled_segment_ps=0.8, start_us=2.6, unaligned=(1.3, 1.3), within_lines=1.03,
    ), mainloop="ROWS"),
    tile_simt((64, 64, 16), (8, 4), 5, TileRate(
        flops=39.2e12, fixed_us=2.9e-3, nonzero_ps=0.4, run_ps=0.3, scaled_ps=3.0,
        scaled_segment_ps=0.7, unaligned=(1.15, 1.15),
    )),
    tile_simt((64, 64, 32), (4, 8), 4, TileRate(
        flops=40.6e12, fixed_us=1.1e-3, nonzero_ps=0.75, run_ps=2.5, scaled_ps=3.5,
        scaled_segment_ps=0.6, start_us=1.7, unaligned=(1.25, 1.25), within_lines=1.06,
    ), mainloop="ROWS"),
    tile_simt((128, 128, 8), (8, 16), 2, TileRate(
        flops=50.5e12, fixed_us=0.0, nonzero_ps=6.5, segment_us=27.5e-3, scaled_ps=5.5,
        scaled_segment_ps=1.7,
    ), mainloop="PIPELINED", stages=3),
    tile_simt((64, 64, 16), (8, 8), 3, TileRate(
        flops=44.1e12, fixed_us=5.9e-3, nonzero_ps=2.9, segment_us=10.2e-3, scaled_ps=3.2,
        scaled_segment_ps=1.0, start_us=0.5,
    ), mainloop="PIPELINED", stages=3, slices=2),
    tile_wmma((16, 16), (4, 2), TileRate(
        flops=259e12, fixed_us=9.2e-3, nonzero_ps=4.9, run_ps=-1.9, round_ps=4.6,
        segment_us=24.4e-3, full_us=22.7e-3, scaled_ps=2.5, scaled_segment_ps=0.6, overlap=1.34,
        unaligned=(1.8, 4.0),
    )),
    tile_wmma((32, 8), (2, 4)),
    tile_wmma((8, 32), (4, 2)),
)  # fmt: skip

SPECS: dict[str, KernelSpec] = {
    spec.name: spec for spec in (ROW_GATHER, GATHER_LINES, WINDOWS, *TILE_KERNELS)
}
"""The kernels with a source of their own, by name. The first serves the most problems."""

_ALL: tuple[GpuKernel, ...] = (
    ROW_GATHER, GATHER_LINES, WINDOWS, *TILE_KERNELS, Hybrid("hybrid", TILE_KERNELS, ROW_GATHER),
)  # fmt: skip
KERNELS: dict[str, GpuKernel] = {kernel.name: kernel for kernel in _ALL}
"""All that the planner of sddmm asks."""

_ALL_PRODUCTS: tuple[ProductKernel, ...] = (SPMM_GATHER, SPMM_WINDOWS, *SPMM_TILES)
SPMM_KERNELS: dict[str, ProductKernel] = {kernel.name: kernel for kernel in _ALL_PRODUCTS}
"""All that the planner of spmm asks."""

ATTENTION_KERNELS: dict[str, AttentionKernel] = {
    kernel.name: kernel
    for kernel in (
        ATTENTION_GATHER,
        AttentionScores("attention_scores", ATTENTION_GATHER, ROW_GATHER, WINDOWS),
        ATTENTION_TILE,
        ATTENTION_TILE_SIMT,
    )
}
"""All that the planner of attention asks."""

BLOCK_KERNELS: dict[str, BlockKernel] = {
    kernel.name: kernel
    for kernel in (
        block_mma("block_mma_64x64", (32, 64), (2, 1), 2, 2, BlockRate(213e12)),
        block_mma("block_mma_32x32", (32, 32), (1, 1), 2, 3, BlockRate(172e12)),
        block_mma("block_mma_16x16", (16, 16), (1, 1), 1, 8, BlockRate(109e12)),
        block_simt("block_simt_64x64", (64, 64, 16), (8, 8), 8, BlockRate(44e12)),
        block_simt("block_simt_32x32", (32, 32, 16), (8, 4), 16, BlockRate(31e12)),
        block_simt("block_simt_16x16", (16, 16, 16), (4, 2), 16, BlockRate(16e12)),
    )
}
"""All that the planner of block patterns asks."""
