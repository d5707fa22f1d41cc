"""The cost model: which kernels for a pattern and a problem. Pure functions.

Gathering costs the bytes of a row of B a nonzero, out of L2 or memory; a dense tile costs its
arithmetic and what beginning and ending it takes, however few of its entries are wanted. A tile is
worth computing whole if it holds more nonzeros than that is worth of gathering.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemm_core.device import Device
from sddmm.problem import Problem
from sddmm.spec import KernelSpec

GATHER, WINDOWS, HYBRID = "row_gather", "windows", "hybrid"

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


def gather_us(problem: Problem, nonzeros: int, rates: Rates, device: Device) -> float:
    """row_gather of so many of the problem's nonzeros."""
    row_bytes = problem.k * problem.dtype.itemsize
    heads = problem.heads or 1
    rows_touched = min(problem.m, nonzeros)
    wanted = heads * (nonzeros + rows_touched) * row_bytes
    operands = (min(problem.n, nonzeros) + rows_touched) * row_bytes
    in_l2 = min(1.0, 0.8 * device.l2_bytes / max(1, operands))
    from_memory = wanted * (1 - in_l2) + heads * operands * in_l2
    return rates.launch_us + 1e6 * max(wanted / rates.l2_bytes, from_memory / rates.memory_bytes)


def windows_us(problem: Problem, width: int, rates: Rates, device: Device) -> float:
    """The windows kernel: each nonzero from shared memory, each row of A once a window it is in."""
    row_bytes = problem.k * problem.dtype.itemsize
    heads = problem.heads or 1
    windows = -(-problem.n // width)
    pairs = min(problem.nnz, problem.m * windows)  # of a row and a window, where S is uniform
    from_l2 = heads * (pairs + problem.n + device.sm_count * width) * row_bytes
    both_rows = heads * 2 * problem.nnz * row_bytes  # through registers
    rate = rates.shared_bytes * (0.7 if problem.dtype.itemsize == 2 else 1.0)
    memory = gather_us(problem, pairs, rates, device)
    return max(
        memory, rates.launch_us + 1e6 * max(both_rows / rate, from_l2 / rates.l2_bytes / 0.7)
    )


def tile_us(problem: Problem, spec: KernelSpec, tiles: int, rates: Rates) -> float:
    """So many tiles of a tile kernel."""
    return rates.launch_us + (problem.heads or 1) * tiles * one_tile_us(problem, spec, rates)


def one_tile_us(problem: Problem, spec: KernelSpec, rates: Rates) -> float:
    block_m, block_n, block_k = spec.tile
    rate = rates.tiles[spec.name]
    k = -(-problem.k // block_k) * block_k
    return rate.fixed_us + 2e6 * block_m * block_n * k / rate.flops


def least_nonzeros(problem: Problem, spec: KernelSpec, rates: Rates) -> int:
    """Nonzeros from which on a tile is computed whole sooner than they are gathered."""
    gathered_us = 1e6 * problem.k * problem.dtype.itemsize / rates.l2_bytes
    return int(one_tile_us(problem, spec, rates) / max(gathered_us, 1e-12)) + 1


def predictions(
    problem: Problem,
    spec: KernelSpec | None,
    profile: TileProfile | None,
    window_width: int,
    rates: Rates,
    device: Device,
) -> list[Prediction]:
    """All ways, the quickest first. spec: the tile kernel that may serve, and `profile` its tiles.

    window_width: columns of a window, 0 if `windows` does not serve.
    """
    found = [Prediction(GATHER, gather_us(problem, problem.nnz, rates, device))]
    if window_width > 0:
        found.append(Prediction(WINDOWS, windows_us(problem, window_width, rates, device)))
    if spec is not None and profile is not None:
        found.append(Prediction(spec.name, tile_us(problem, spec, profile.tiles, rates)))
        if 0 < profile.worth_nonzeros < problem.nnz:
            rest = problem.nnz - profile.worth_nonzeros
            both = tile_us(problem, spec, profile.worth_tiles, rates)
            both += gather_us(problem, rest, rates, device)
            found.append(Prediction(HYBRID, both / _WORTH_TWO_LAUNCHES))
    return sorted(found, key=lambda prediction: prediction.us)


def tile_kernel(
    problem: Problem, specs: Mapping[str, KernelSpec], device: Device, rates: Rates
) -> KernelSpec | None:
    """The tile kernel that serves, and has a rate, with the least time a covered element."""

    def us_an_element(spec: KernelSpec) -> float:
        return one_tile_us(problem, spec, rates) / (spec.tile[0] * spec.tile[1])

    serving = [
        spec
        for spec in specs.values()
        if spec.family.startswith("tile")
        and spec.name in rates.tiles
        and spec.refuses(problem, device) is None
    ]
    return min(serving, key=us_an_element, default=None)
