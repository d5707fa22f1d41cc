"""The GPU kernels, one line each."""

from __future__ import annotations

from sddmm.backends.cuda.cost_model import TileRate
from sddmm.backends.cuda.kernels.block import BlockKernel, BlockRate
from sddmm.backends.cuda.kernels.block_mma.host import block_mma
from sddmm.backends.cuda.kernels.block_simt.host import block_simt
from sddmm.backends.cuda.kernels.hybrid.host import Hybrid
from sddmm.backends.cuda.kernels.row_gather.host import ROW_GATHER
from sddmm.backends.cuda.kernels.tile import TileKernel
from sddmm.backends.cuda.kernels.tile_mma.host import tile_mma
from sddmm.backends.cuda.kernels.tile_simt.host import tile_simt
from sddmm.backends.cuda.kernels.tile_warp.host import tile_warp
from sddmm.backends.cuda.kernels.tile_wgmma.host import tile_wgmma
from sddmm.backends.cuda.kernels.tile_wgmma_tf32x3.host import tile_wgmma_tf32x3
from sddmm.backends.cuda.kernels.tile_wmma.host import tile_wmma
from sddmm.backends.cuda.kernels.windows.host import WINDOWS
from sddmm.backends.cuda.spec import GpuKernel, KernelSpec

# Rates are measured on an H200 of 132 multiprocessors (docs/results/h200).
TILE_KERNELS: tuple[TileKernel, ...] = (
    tile_wgmma(128, 256, 256, TileRate(900e12, 7.5e-3, 15.3, -11.4, 5, 2.5)),
    tile_wgmma(128, 224, 256, TileRate(880e12, 7.1e-3, 15.3, -11.4, 5, 2.5)),
    tile_wgmma(256, 152, 176, TileRate(895e12, 10.0e-3, 15.3, -9, 5, 2.5)),
    tile_mma(
        "tile_mma_128x128x64",
        (128, 128, 64),
        (2, 2),
        3,
        2,
        rate=TileRate(620e12, 16.9e-3, 0.34, 8.6, 2.5),
    ),
    tile_mma(
        "tile_mma_64x64x32",
        (64, 64, 32),
        (2, 2),
        3,
        4,
        rate=TileRate(330e12, 1.9e-3, 0.65, 3.5),
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
    tile_warp(16, (8, 3), TileRate(103e12, 0.05e-3, 0.78, 8.2)),
    tile_warp(32, (4, 2), TileRate(206e12, 0.2e-3, 1.0, 6.0)),
    tile_wgmma_tf32x3(TileRate(114e12, 23e-3, 1.3, 6)),
    tile_simt((64, 64, 16), (8, 4), 5, TileRate(41e12, 2.0e-3, 0.65, 0.1)),
    tile_simt((64, 64, 32), (4, 8), 4, TileRate(43e12, 2.2e-3, 0.55, 0.3), mainloop="ROWS"),
    tile_simt(
        (64, 128, 8), (8, 16), 4, TileRate(46.5e12, 6e-3, 0.7, 3), mainloop="PIPELINED", stages=4
    ),
    tile_wmma((16, 16), (4, 2), TileRate(307e12, 9.2e-3, 0.88, 2.6, 3)),
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
