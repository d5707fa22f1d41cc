"""The quantities of the cost model: the rates of a device, the cost of a kernel.

Gathering costs the bytes of a row of B per nonzero, out of L2 or memory. A dense tile costs its
arithmetic and a fixed time, however few of its entries are sampled; then each nonzero costs what
storing it takes, and each run of consecutive columns what finding it takes. A tile is dense, worth
computing whole, if gathering its nonzeros would take longer. Each kernel computes its own cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gemm_core.arithmetic import loads_of_16_bytes
from sddmm.backends.cuda.facts import expected_row_parts

if TYPE_CHECKING:
    from gemm_core.runtime.device import Device

# A uniform pattern has at least this part of the non-empty row segments expected by chance.
_UNIFORM_PART = 0.95

# Mean nonzeros in consecutive columns from which on rows are stored as segments: those of parts of
# a tile's row take longer than by eight lanes (blocks of 32, 5 % of 16k: 115 us, and 84).
_SEGMENT_NNZ = 48

# Estimates for a ranking of preparations only: a stable sort with all that is gathered by it takes
# as long as so many launches, and as moving so many bytes per nonzero; and listing tiles as so many
# launches.
_SORT_LAUNCHES, _SORT_BYTES = 400, 550
LIST_TILES_LAUNCHES = 120


@dataclass(frozen=True, eq=False)
class TileRate:
    """The speed of a tile kernel on an H200.

    flops: per second, of whole tiles. fixed_us: the fixed time of a tile, which all tiles that run
    at the same time share. nonzero_ps: picoseconds by which each stored nonzero lengthens the run;
    run_ps: by which each run of consecutive columns does, a single nonzero being a run, or less
    than 0 where short runs are stored more easily; round_ps: by which each further 32 nonzeros of a
    tile's row do, past the first 32. segment_us, full_us: the fixed time of a tile where rows
    mostly are segments, and where all tiles are full, so that segments are aligned; nonzeros then
    add nothing. scaled_ps, scaled_segment_ps: by which multiplying a nonzero by S's value lengthens
    the run, where nonzeros are scattered, and where rows mostly are segments. start_us: the time
    from the launch to the first tile, beyond that of any launch. overlap: the exponent p by which
    arithmetic of time t and all else of time u take (t^p + u^p)^(1/p): 1 if one waits for the
    other, more if they overlap. unaligned: by how much longer arithmetic takes where rows of the
    operands start at multiples of 4 bytes, and of 2, not of 16 (`unaligned_factor`). within_lines:
    by how much where they start within lines of 128 bytes.
    """

    flops: float
    fixed_us: float
    nonzero_ps: float = 0.0
    run_ps: float = 0.0
    round_ps: float = 0.0
    segment_us: float | None = None
    full_us: float | None = None
    scaled_ps: float = 0.0
    scaled_segment_ps: float = 0.0
    start_us: float = 0.0
    overlap: float = 1.0
    unaligned: tuple[float, float] = (1.0, 1.0)
    within_lines: float = 1.0

    def combined_us(self, arithmetic_us: float, beside_us: float) -> float:
        """The time of arithmetic and of all else."""
        if self.overlap == 1:
            return arithmetic_us + beside_us
        return float((arithmetic_us**self.overlap + beside_us**self.overlap) ** (1 / self.overlap))


def unaligned_factor(factors: tuple[float, float], row_bytes: int) -> float:
    """By how much longer a tile takes with adjacent rows of so many bytes, which are copied by 16
    bytes, by words, or by elements of 2. factors: those of words and of elements."""
    loads, (of_words, of_elements) = loads_of_16_bytes(row_bytes), factors
    if loads == 1:
        return 1.0
    return of_words if loads <= 4 else of_elements


def are_segments(nnz: float, runs: float) -> bool:
    """Whether rows mostly are segments of consecutive columns."""
    return nnz >= _SEGMENT_NNZ * runs > 0


def further_rounds(mean: float) -> float:
    """The further 32 nonzeros that a row begins past its first 32, where chance spreads them.

    mean: nonzeros of a row. Their number is taken to be normal, with the variance of chance.
    """
    if mean < 16:  # four deviations below 32
        return 0.0
    deviation = math.sqrt(2 * mean)
    certain, last = max(0, int((mean - 4 * deviation) / 32)), int(mean / 32) + 2
    likely = (math.erfc((32 * i - mean) / deviation) / 2 for i in range(certain + 1, last + 1))
    return certain + sum(likely)


@dataclass(frozen=True, eq=False)
class DeviceModel:
    """The rates of a device. Compared by identity, as `device_model` returns one per device.

    l2_bytes, memory_bytes, shared_bytes: bytes per second gathered from L2 and from memory, and
    read from shared memory through registers. launch_us: the time of a launch. tensor_cores: the
    rate of the tensor cores, an H200's being 1; stores: that of loads and stores by single
    elements and of other instructions.
    """

    device: Device
    l2_bytes: float
    memory_bytes: float
    shared_bytes: float
    launch_us: float
    tensor_cores: float = 1.0
    stores: float = 1.0


class Cost(NamedTuple):
    """Microseconds of one run, and of the preparation beyond the analysis."""

    run_us: float
    prepare_us: float = 0.0

    def total_us(self, calls: int) -> float:
        """The preparation and so many runs."""
        return self.prepare_us + calls * self.run_us


def sort_us(nnz: int, model: DeviceModel) -> float:
    """Sorting the nonzeros of a pattern, once."""
    return _SORT_LAUNCHES * model.launch_us + 1e6 * _SORT_BYTES * nnz / model.memory_bytes


def uniform_threshold(shape: tuple[int, int], nnz: int, width: int) -> float:
    """The non-empty row segments, of `width` columns each, from which on a pattern is uniform.

    A pattern drawn by chance has as many. One that leaves tiles empty by design has fewer.
    """
    return _UNIFORM_PART * expected_row_parts(shape, nnz, width)
