"""The cost model: which kernels for a pattern and a problem. Pure functions.

Gathering costs the bytes of a row of B a nonzero, out of L2 or memory; a dense tile costs its
arithmetic and what beginning and ending it takes, however few of its entries are wanted. A tile is
worth computing whole if it holds more nonzeros than that is worth of gathering.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gemm_core.runtime.device import Device
from sddmm.backends.cuda.spec import KernelSpec
from sddmm.dtypes import DTYPES
from sddmm.problem import Problem

GATHER, WINDOWS, HYBRID = "row_gather", "windows", "hybrid"

# The part of L2 that operands may count on, the bytes of a row that a warp of row_gather takes at a
# time, and how often a row must be read for it to pay that it stays in L2.
_L2_SHARE = 0.8
_SLICE_BYTES = 512
_REUSES = 4

# Of the segments expected by chance, the part that an even pattern has.
_EVEN = 0.95

# A hybrid must promise this much less than the best single kernel: it launches twice.
_WORTH_TWO_LAUNCHES = 0.9


@dataclass(frozen=True)
class TileRate:
    """flops: a second, of whole tiles. fixed_us: a tile costs beside, shared by all that run."""

    flops: float
    fixed_us: float


@dataclass(frozen=True)
class Rates:
    """What a device reaches: bytes a second gathered from L2 and from memory, a launch in us.

    shared_bytes: a second, through the registers of `windows`. tiles: by kernel name.
    """

    l2_bytes: float
    memory_bytes: float
    shared_bytes: float
    launch_us: float
    tiles: Mapping[str, TileRate]


@dataclass(frozen=True)
class TileProfile:
    """Of one tile size: tiles that are not empty; those worth computing, and their nonzeros."""

    tiles: int
    worth_tiles: int
    worth_nonzeros: int


@dataclass(frozen=True)
class Prediction:
    """A way to compute the problem, and the microseconds that it should take."""

    name: str
    us: float


def gather_slice(problem: Problem, nonzeros: int, device: Device) -> int:
    """Elements of k to gather at a time: all, unless only a slice of the operands stays in L2."""
    row_bytes = problem.k * problem.dtype.itemsize
    rows = min(problem.n, nonzeros) + min(problem.m, nonzeros)
    reused = nonzeros >= _REUSES * rows
    if not reused or rows * row_bytes <= _L2_SHARE * device.l2_bytes:
        return problem.k
    slices = int(_L2_SHARE / 2 * device.l2_bytes) // rows // _SLICE_BYTES
    return min(problem.k, max(1, slices) * _SLICE_BYTES // problem.dtype.itemsize)


def gather_us(problem: Problem, nonzeros: int, rates: Rates, device: Device) -> float:
    """row_gather of so many of the problem's nonzeros."""
    itemsize, heads = problem.dtype.itemsize, problem.heads or 1
    width = gather_slice(problem, nonzeros, device)
    slices = -(-problem.k // width) if width else 1
    rows_touched = min(problem.m, nonzeros)
    wanted = heads * (nonzeros + rows_touched) * problem.k * itemsize
    rows = min(problem.n, nonzeros) + rows_touched
    in_l2 = min(1.0, _L2_SHARE * device.l2_bytes / max(1, rows * width * itemsize))
    from_memory = wanted * (1 - in_l2) + heads * rows * problem.k * itemsize * in_l2
    partial_sums = 2 * 4 * heads * nonzeros * (slices - 1)
    seconds = max(wanted / rates.l2_bytes, from_memory / rates.memory_bytes)
    return slices * rates.launch_us + 1e6 * (seconds + partial_sums / rates.memory_bytes)


def windows_us(problem: Problem, width: int, rates: Rates, device: Device) -> float:
    """The windows kernel: each nonzero from shared memory, each row of A once a window it is in."""
    row_bytes = problem.k * problem.dtype.itemsize
    heads = problem.heads or 1
    windows = -(-problem.n // width)
    pairs = min(problem.nnz, problem.m * windows)  # of a row and a window, where S is uniform
    from_l2 = heads * (pairs + problem.n + device.sm_count * width) * row_bytes
    both_rows = heads * 2 * problem.nnz * row_bytes  # through registers
    rate = rates.shared_bytes * (0.7 if DTYPES[problem.dtype].is_half else 1.0)
    memory = gather_us(problem, pairs, rates, device)
    return max(
        memory, rates.launch_us + 1e6 * max(both_rows / rate, from_l2 / rates.l2_bytes / 0.7)
    )


def tile_us(problem: Problem, spec: KernelSpec, tiles: int, rates: Rates, device: Device) -> float:
    """So many tiles of a tile kernel, in waves: the last costs what a full one does."""
    at_once = device.sm_count * spec.min_blocks
    waves = -(-(problem.heads or 1) * tiles // at_once)
    return rates.launch_us + waves * at_once * one_tile_us(problem, spec, rates)


def one_tile_us(problem: Problem, spec: KernelSpec, rates: Rates) -> float:
    block_m, block_n, block_k = spec.tile
    rate = rates.tiles[spec.name]
    k = -(-problem.k // block_k) * block_k
    return rate.fixed_us + 2e6 * block_m * block_n * k / rate.flops


def tiles_may_pay(problem: Problem, spec: KernelSpec, rates: Rates, device: Device) -> bool:
    """Whether to count nonzeros by tile: not if one tile costs what gathering them all does."""
    return tile_us(problem, spec, 1, rates, device) < gather_us(problem, problem.nnz, rates, device)


def even_segments(problem: Problem, width: int) -> float:
    """Segments, parts of a row of so many columns that are not empty, from which on a pattern is
    spread evenly: it has as many as one drawn by chance. What leaves none empty by design has no
    tiles worth telling apart."""
    all_of_them = problem.m * -(-problem.n // width)
    if all_of_them == 0:
        return 0
    return -_EVEN * all_of_them * math.expm1(-problem.nnz / all_of_them)


def even_profile(problem: Problem, spec: KernelSpec, least: int) -> TileProfile:
    """Of a pattern that is spread evenly; least: nonzeros that make a tile worth computing."""
    tiles = spec.tiles(problem.m, problem.n)
    worth = problem.nnz >= tiles * least
    return TileProfile(min(tiles, problem.nnz), tiles * worth, problem.nnz * worth)


def least_nonzeros(problem: Problem, spec: KernelSpec, rates: Rates) -> int:
    """Nonzeros from which on a tile is computed whole sooner than they are gathered."""
    gathered_us = 1e6 * problem.k * problem.dtype.itemsize / rates.l2_bytes
    least = one_tile_us(problem, spec, rates) / max(gathered_us, 1e-12)
    return int(min(least, 2**31 - 2)) + 1  # a kernel counts in 32 bits


def without_tiles(
    problem: Problem, window_width: int, rates: Rates, device: Device
) -> list[Prediction]:
    """The ways whose time follows from the problem alone. window_width: columns of a window, 0 if
    `windows` does not serve."""
    found = [Prediction(GATHER, gather_us(problem, problem.nnz, rates, device))]
    if window_width > 0:
        found.append(Prediction(WINDOWS, windows_us(problem, window_width, rates, device)))
    return found


def with_tiles(
    problem: Problem, spec: KernelSpec, profile: TileProfile, rates: Rates, device: Device
) -> list[Prediction]:
    """The ways by a tile kernel, `profile` being of its tiles."""
    found = [Prediction(spec.name, tile_us(problem, spec, profile.tiles, rates, device))]
    if 0 < profile.worth_nonzeros < problem.nnz:
        rest = problem.nnz - profile.worth_nonzeros
        both = tile_us(problem, spec, profile.worth_tiles, rates, device)
        both += gather_us(problem, rest, rates, device)
        found.append(Prediction(HYBRID, both / _WORTH_TWO_LAUNCHES))
    return found


def tile_kernel(
    problem: Problem, specs: Mapping[str, KernelSpec], device: Device, rates: Rates
) -> KernelSpec | None:
    """The tile kernel that serves, and has a rate, with the least time for all of the matrix."""

    def whole_us(spec: KernelSpec) -> float:
        return tile_us(problem, spec, spec.tiles(problem.m, problem.n), rates, device)

    serving = [
        spec
        for spec in specs.values()
        if spec.family.startswith("tile")
        and spec.name in rates.tiles
        and spec.refuses(problem, device) is None
    ]
    return min(serving, key=whole_us, default=None)
