"""The GPU kernels, one line each."""

from __future__ import annotations

from sddmm.backends.cuda.cost_model import TileRate
from sddmm.backends.cuda.kernels.attention_gather.host import ATTENTION_GATHER
from sddmm.backends.cuda.kernels.attention_scores.host import AttentionScores
from sddmm.backends.cuda.kernels.attention_tile.host import ATTENTION_TILE, ATTENTION_TILE_SIMT
from sddmm.backends.cuda.kernels.block import BlockKernel, BlockRate
from sddmm.backends.cuda.kernels.block_mma.host import block_mma
from sddmm.backends.cuda.kernels.block_simt.host import block_simt
from sddmm.backends.cuda.kernels.hybrid.host import Hybrid
from sddmm.backends.cuda.kernels.row_gather.host import ROW_GATHER
from sddmm.backends.cuda.kernels.spmm_gather.host import SPMM_GATHER
from sddmm.backends.cuda.kernels.spmm_tile.host import SPMM_TILES
from sddmm.backends.cuda.kernels.tile import TileKernel
from sddmm.backends.cuda.kernels.tile_mma.host import tile_mma
from sddmm.backends.cuda.kernels.tile_simt.host import tile_simt
from sddmm.backends.cuda.kernels.tile_warp.host import tile_warp
from sddmm.backends.cuda.kernels.tile_wgmma.host import tile_wgmma
from sddmm.backends.cuda.kernels.tile_wgmma_async.host import StagingSlots, tile_wgmma_async
from sddmm.backends.cuda.kernels.tile_wgmma_listed.host import tile_wgmma_listed
from sddmm.backends.cuda.kernels.tile_wgmma_tf32x3.host import tile_wgmma_tf32x3
from sddmm.backends.cuda.kernels.tile_wmma.host import tile_wmma
from sddmm.backends.cuda.kernels.windows.host import WINDOWS
from sddmm.backends.cuda.spec import AttentionKernel, GpuKernel, KernelSpec, ProductKernel

# Rates are measured on an H200 of 132 multiprocessors (docs/results/h200).
TILE_KERNELS: tuple[TileKernel, ...] = (
    tile_wgmma(
        128, 256, 256, TileRate(813e12, 9.9e-3, 14.1, -10.0, 209, start_us=0.6, overlap=1.2)
    ),
    tile_wgmma(128, 224, 256, TileRate(792e12, 11.5e-3, 13.3, -10.4, 243, overlap=1.24)),
    tile_wgmma(256, 152, 176, TileRate(856e12, 6.6e-3, 15.3, 4.8, start_us=0.8)),
    tile_wgmma_async(
        (128, 256),
        3,
        StagingSlots(1, 1024),
        StagingSlots(2, 512),
        TileRate(777e12, 15.6e-3, 5.6, -0.8, 200, start_us=0.2, overlap=1.73),
        lead=1,
    ),
    tile_wgmma_async(
        (128, 224),
        3,
        StagingSlots(1, 896),
        StagingSlots(2, 464),
        TileRate(759e12, 18.4e-3, 5.6, -2.1, 213, overlap=2.09),
        lead=0,
    ),
    tile_wgmma_listed(256, TileRate(788e12, 15.2e-3, 5.2, -0.5, overlap=1.95)),
    tile_mma(
        "tile_mma_128x128x64",
        (128, 128, 64),
        (2, 2),
        3,
        2,
        rate=TileRate(533e12, 11.8e-3, 7.1, -4.7, 24, 24.5e-3, 20.5e-3),
    ),
    tile_mma(
        "tile_mma_64x64x32",
        (64, 64, 32),
        (2, 2),
        3,
        4,
        rate=TileRate(287e12, 3.0e-3, 3.2, -1.1, 29, 6.4e-3, 3.9e-3, overlap=1.16),
        hopper_min_blocks=5,
        short_min_blocks=8,
    ),
    tile_mma(
        "tile_mma_tf32_64x64x32", (64, 64, 32), (2, 2), 3, 3, "tf32", TileRate(150e12, 3e-3, 1.5, 4)
    ),
    tile_mma(
        "tile_mma_tf32x3_64x64x32",
        (64, 64, 32),
        (2, 2),
        3,
        2,
        "tf32x3",
        TileRate(45e12, 3e-3, 1.5, 4),
    ),
    tile_warp(16, (8, 3), TileRate(95e12, 0.05e-3, 0.6, 6.5, start_us=0.8)),
    tile_warp(32, (4, 2), TileRate(179e12, 0.37e-3, 1.14, 9.7, start_us=2.0)),
    tile_wgmma_tf32x3(TileRate(114e12, 23e-3, 1.3, 6)),
    tile_simt((64, 64, 16), (8, 4), 5, TileRate(41e12, 2.0e-3, 0.65, 0.1)),
    tile_simt((64, 64, 32), (4, 8), 4, TileRate(43e12, 2.2e-3, 0.55, 0.3), mainloop="ROWS"),
    tile_simt(
        (64, 128, 8), (8, 16), 4, TileRate(46.5e12, 6e-3, 0.7, 3), mainloop="PIPELINED", stages=4
    ),
    tile_wmma(
        (16, 16), (4, 2), TileRate(260e12, 9.9e-3, 5.7, -3.1, 1.4, 24.4e-3, 22e-3, overlap=1.36)
    ),
    tile_wmma((32, 8), (2, 4)),
    tile_wmma((8, 32), (4, 2)),
)

SPECS: dict[str, KernelSpec] = {spec.name: spec for spec in (ROW_GATHER, WINDOWS, *TILE_KERNELS)}
"""The kernels with a source of their own, by name. The first serves the most problems."""

_ALL: tuple[GpuKernel, ...] = (
    ROW_GATHER, WINDOWS, *TILE_KERNELS, Hybrid("hybrid", TILE_KERNELS, ROW_GATHER),
)  # fmt: skip
KERNELS: dict[str, GpuKernel] = {kernel.name: kernel for kernel in _ALL}
"""All that the planner of sddmm asks."""

_ALL_PRODUCTS: tuple[ProductKernel, ...] = (SPMM_GATHER, *SPMM_TILES)
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
