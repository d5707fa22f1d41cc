"""The GPU kernels, one line each."""

from __future__ import annotations

import torch

from sddmm.backends.cuda.spec import KernelSpec
from sddmm.dtypes import DTYPES, HALF_DTYPES

_ALL = tuple(DTYPES)


def _tile(
    name: str,
    source: str,
    tile: tuple[int, int, int],
    warps: tuple[int, int],
    stages: int,
    min_blocks: int,
    dtypes: tuple[torch.dtype, ...],
    precision: str = "ieee",
    pad: int = 0,
    **defines: str | int | bool,
) -> KernelSpec:
    """A tile of sums takes the shared memory of the stages when these have been read."""
    block_m, block_n, block_k = tile
    stage_bytes = (block_m + block_n) * (block_k + pad) * dtypes[0].itemsize
    return KernelSpec(
        name=name,
        family="tile",
        source=source,
        dtypes=dtypes,
        threads=32 * warps[0] * warps[1],
        precision=precision,
        tile=tile,
        shared_bytes=max(stages * stage_bytes, block_m * block_n * 4),
        min_blocks=min_blocks,
        defines={"WARPS_M": warps[0], "WARPS_N": warps[1], "STAGES": stages, **defines},
    )


def _mma(
    name: str,
    tile: tuple[int, int, int],
    warps: tuple[int, int],
    stages: int,
    min_blocks: int,
    precision: str = "ieee",
) -> KernelSpec:
    dtypes = HALF_DTYPES if precision == "ieee" else (torch.float32,)
    split = precision == "tf32x3"
    return _tile(name, "tile_mma", tile, warps, stages, min_blocks, dtypes, precision, SPLIT=split)


def _wgmma(block_m: int, block_n: int, row_bytes: int) -> KernelSpec:
    """Four stages and their barriers, then a part of the columns of each warp's 16 rows.

    row_bytes: of such a part, at most (sampled_warp.cuh).
    """
    block_k, stages = 64, 4
    stage_bytes = (block_m + block_n) * block_k * 2 + 16
    return KernelSpec(
        name=f"tile_wgmma_{block_m}x{block_n}x{block_k}",
        family="tile_tma",
        source="tile_wgmma",
        dtypes=HALF_DTYPES,
        threads=384,
        tile=(block_m, block_n, block_k),
        shared_bytes=stages * stage_bytes + 8 * 16 * row_bytes,
        min_capability=(9, 0),
        max_capability=(9, 0),
        defines={
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "STAGES": stages,
            "ROW_BYTES": row_bytes,
        },
    )


def _wmma(fragment: tuple[int, int], warps: tuple[int, int]) -> KernelSpec:
    m, n = fragment
    return _tile(
        f"tile_wmma_m{m}n{n}k16", "tile_wmma", (128, 128, 32), warps, 3, 2, (torch.float16,),
        pad=8, FRAGMENT_M=m, FRAGMENT_N=n,
    )  # fmt: skip


KERNELS: dict[str, KernelSpec] = {
    spec.name: spec
    for spec in (
        KernelSpec("row_gather", "gather", "row_gather", _ALL, threads=128, min_blocks=4),
        KernelSpec("windows", "windows", "windows", _ALL, threads=480, shared_bytes=200 * 1024),
        _wgmma(128, 256, 256),
        _wgmma(128, 224, 256),
        _wgmma(256, 152, 176),
        _mma("tile_mma_128x128x64", (128, 128, 64), (2, 2), 3, 2),
        _mma("tile_mma_64x64x32", (64, 64, 32), (2, 2), 3, 4),
        _mma("tile_mma_tf32_64x64x32", (64, 64, 32), (2, 2), 3, 3, "tf32"),
        _mma("tile_mma_tf32x3_64x64x32", (64, 64, 32), (2, 2), 3, 2, "tf32x3"),
        _wmma((16, 16), (4, 2)),
        _wmma((32, 8), (2, 4)),
        _wmma((8, 32), (4, 2)),
    )
}
