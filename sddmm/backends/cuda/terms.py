"""Plans on a GPU: what follows from the problem alone, and is kept for the next pattern."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from gemm_core.runtime.device import Device
from sddmm.backends.cuda import cost_model as choose
from sddmm.backends.cuda.analysis import ROWS, Wanted, counts_starts
from sddmm.backends.cuda.device_model import rates_of
from sddmm.backends.cuda.kernels.registry import KERNELS
from sddmm.backends.cuda.kernels.windows import host as windows
from sddmm.backends.cuda.spec import KernelSpec
from sddmm.problem import Problem


@dataclass(frozen=True)
class Terms:
    """What a choice depends on beside the pattern.

    tile_spec: the tile kernel that may serve, and counted_spec the same if it is worth to count a
    pattern's tiles. even: what to find of a pattern that may need no count, as it is spread evenly;
    even_segments: from which on it is so. without_tiles: the ways that need no count, the quickest
    first.
    """

    rates: choose.Rates
    refusals: dict[str, str]
    tile_spec: KernelSpec | None
    counted_spec: KernelSpec | None
    even: Wanted
    even_segments: float
    without_tiles: list[choose.Prediction]

    @property
    def all_tiles_pay(self) -> bool:
        """Even if none of them is empty: so it is found where the nonzeros of each begin."""
        return self.even.starts


def quickest_first(ways: list[choose.Prediction]) -> list[choose.Prediction]:
    return sorted(ways, key=lambda way: way.us)


@functools.lru_cache(maxsize=1024)
def terms_of(problem: Problem, device: Device) -> Terms:
    """Of a problem on a device; worked out once."""
    rates = rates_of(device)
    refusals = {
        name: reason
        for name, spec in KERNELS.items()
        if (reason := spec.refuses(problem, device)) is not None
    }
    spec = choose.tile_kernel(problem, KERNELS, device, rates)
    may_pay = spec is not None and choose.tiles_may_pay(problem, spec, rates, device)
    serves = choose.WINDOWS not in refusals
    width = windows.width_of(KERNELS[choose.WINDOWS], problem) if serves else 0
    ways = quickest_first(choose.without_tiles(problem, width, rates, device))
    even, segments = ROWS, math.inf
    if spec is not None:
        all_pay = _all_tiles_pay(problem, spec, ways[0].us, rates, device)
        even = Wanted(spec.tile[:2], starts=all_pay)
        segments = choose.even_segments(problem, spec.tile[1])
    return Terms(
        rates,
        refusals,
        spec,
        counted_spec=spec if may_pay else None,
        even=even,
        even_segments=segments,
        without_tiles=ways,
    )


def _all_tiles_pay(
    problem: Problem, spec: KernelSpec, other_us: float, rates: choose.Rates, device: Device
) -> bool:
    """Whether to compute every tile takes less than other_us, and their starts can be counted."""
    shape = (problem.m, problem.n)
    if not counts_starts(shape, spec.tile[:2]):
        return False
    return choose.tile_us(problem, spec, spec.tiles(*shape), rates, device) < other_us
