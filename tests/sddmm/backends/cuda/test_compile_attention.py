"""The kernels of sparse attention compile without spills for the architectures we name."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from gemm_core.runtime.device import Device
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.attention_delta import host as attention_delta
from sddmm.backends.cuda.kernels.attention_gather.host import ATTENTION_GATHER
from sddmm.backends.cuda.kernels.attention_gather.launcher import specialise
from sddmm.backends.cuda.kernels.attention_gather.tunings import SHORT_TUNING, TUNING
from sddmm.backends.cuda.kernels.attention_gradient import host as gradient
from sddmm.backends.cuda.kernels.attention_scores.host import TUNING as SCORED_TUNING
from sddmm.backends.cuda.kernels.attention_sums import host as attention_sums
from sddmm.backends.cuda.kernels.attention_tile.host import ATTENTION_TILE, ATTENTION_TILE_SIMT
from sddmm.backends.cuda.kernels.attention_tile_gradient import host as tile_gradient
from sddmm.problem import AttentionProblem
from tests.sddmm.backends.cuda.test_compile import DEVICES, Compiler, compiler, own_cache

__all__ = ["compiler", "own_cache"]

BLACKWELL = replace(DEVICES["sm_90a"], capability=(10, 0))
# The architecture, d, dv, the bytes at whose multiples rows start, the dtype, and the kernels.
SIZES = [
    ("sm_80", 16, 16, 16, torch.bfloat16, "tile_columns"),
    ("sm_80", 64, 64, 4, torch.float32, "tile"),
    ("sm_89", 64, 64, 16, torch.float16, "columns"),
    ("sm_90a", 64, 64, 16, torch.bfloat16, "rows"),
    ("sm_90a", 96, 96, 16, torch.float16, "columns"),
    ("sm_90a", 128, 128, 16, torch.float16, "rows"),
    ("sm_90a", 200, 200, 8, torch.float16, "rows"),
    ("sm_90a", 64, 64, 16, torch.float16, "forward"),
    ("sm_90a", 64, 64, 16, torch.float32, "tile"),
    ("sm_100", 16, 16, 16, torch.float16, "tile"),
]


@pytest.mark.parametrize(("arch", "d", "dv", "step", "dtype", "kernels"), SIZES)
def test_it_compiles_without_spilling(
    arch: str, d: int, dv: int, step: int, dtype: torch.dtype, kernels: str,
    compiler: Callable[[Device], Compiler],
) -> None:  # fmt: skip
    device = DEVICES.get(arch, BLACKWELL)
    made = compiler(device)
    compile_size((d, dv, dtype), step, device, kernels.split())
    assert made.cubins
    for cubins in made.cubins.values():
        for cubin in cubins:
            assert cubin.resources.spill_bytes == 0


def problem_of(size: tuple[int, int, torch.dtype], nnz: int) -> AttentionProblem:
    """64 queries and keys of this size, and so many nonzeros."""
    d, dv, dtype = size
    return AttentionProblem(64, 64, nnz, d, dv, 1, dtype, torch.int32, torch.device("cuda", 0))


def compile_size(
    size: tuple[int, int, torch.dtype], step: int, device: Device, kernels: list[str],
    tile_blocks: tuple[tuple[int, bool], ...] = ((64, False),),
) -> None:  # fmt: skip
    """Ask for the kernels of one size, with those that merge pieces of rows on Hopper.

    tile_blocks: of the gradients by tiles, the rows of a block, and whether nonzeros have numbers.
    """
    merges = device.capability == (9, 0)
    options = (size, step, step)
    if "tile" in kernels:
        problem, dtype = problem_of(size, 64), size[2]
        kernel = ATTENTION_TILE_SIMT if dtype == torch.float32 else ATTENTION_TILE
        for numbered in {numbered for _, numbered in tile_blocks}:
            kernel.load(problem, False, step == 16, numbered, False, device)
    for name in ("tile_rows", "tile_columns"):
        for rows, numbered in tile_blocks if name in kernels else ():
            by_columns = name == "tile_columns"
            tile_gradient.load(
                loader.runtime, size, rows, by_columns, by_columns, step == 16, numbered, False,
                device,
            )  # fmt: skip
    if "forward" in kernels:
        tunings = (TUNING, False), (SHORT_TUNING, False), (SCORED_TUNING, True)
        for has_bias, (tuning, has_scores) in itertools.product((False, True), tunings):
            specialise(
                loader.runtime, ATTENTION_GATHER, tuning, *options, has_bias, has_scores, merges,
                device,
            )  # fmt: skip
        attention_delta.load(loader.runtime, size[1], size[2], step, device)
    for name in ("rows", "columns"):
        if name in kernels:
            by_columns = name == "columns"
            for has_bias, nnz in itertools.product((False, True), (64, 6400)):
                problem = problem_of(size, nnz)
                # By columns attention_sums reads what the pass by rows stores.
                stores_weights = not by_columns and attention_sums.pays(problem)
                tuning = gradient.tuning_of(problem, by_columns, stores_weights)
                gradient.specialise(
                    loader.runtime, tuning, *options, has_bias, by_columns, stores_weights, merges,
                    device,
                )  # fmt: skip
    if "columns" in kernels:
        for tuning in (attention_sums.TUNING, attention_sums.SHORT_TUNING):
            attention_sums.specialise(loader.runtime, tuning, *options, merges, device)
