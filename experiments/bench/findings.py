"""What a run found, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.bench.record import NOISY, Record
from experiments.bench.table import figure

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective

# A pair: the fastest record of ours on a case, and the fastest of its peers.
Pair = tuple[Record, Record]


def finding(objective: AnyObjective, records: Sequence[Record]) -> str:
    """Who is the fastest, and by how much; over several cases in the geometric mean.

    Yardsticks, and our kernels by their names, are no contestants.
    """
    cases: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        if record.median_ms and objective.role(record) in ("ours", "peer"):
            cases.setdefault(record.case, []).append(record)
    if not cases:
        return "No method was timed."
    pairs = [pair for own in cases.values() if (pair := _pair(objective, own))]
    if len(cases) == 1 or not pairs:
        return " ".join(_of_one_case(own) for own in list(cases.values())[:3])
    return _of_pairs(pairs)


def noise(records: Sequence[Record]) -> str:
    """Which times are noisy; empty where none is."""
    noisy = [f"{r.name} {r.spread:.2f}" for r in records if r.is_noisy]
    if not noisy:
        return ""
    return (
        f"noisy, marked ~: p80 / p20 above {NOISY:g}: {', '.join(noisy)}; a quieter machine or "
        f"more timing.seconds may help"
    )


def _pair(objective: AnyObjective, records: Sequence[Record]) -> Pair | None:
    sides = {"ours": list[Record](), "peer": list[Record]()}
    for record in records:
        sides[objective.role(record)].append(record)
    if not all(sides.values()):
        return None
    return _fastest(sides["ours"]), _fastest(sides["peer"])


def _fastest(records: Sequence[Record]) -> Record:
    return min(records, key=lambda r: r.median_ms or 0.0)


def _of_one_case(records: Sequence[Record]) -> str:
    first = _fastest(records)
    if len(records) == 1:
        return f"{first.name} takes {figure(first.median_ms)} ms; nothing else was timed."
    second = _fastest([r for r in records if r is not first])
    ratio = (second.median_ms or 0.0) / (first.median_ms or 1.0)
    close = ", which is within their spread" if _overlap(first, second) else ""
    return (
        f"{first.name} is the fastest of {len(records)} methods: {figure(first.median_ms)} ms, "
        f"{ratio:.2f} times as fast as {second.name}{close}."
    )


def _of_pairs(pairs: Sequence[Pair]) -> str:
    ratios = np.array([(peer.median_ms or 0.0) / (ours.median_ms or 1.0) for ours, peer in pairs])
    names = list(dict.fromkeys(ours.name for ours, _ in pairs))
    name = names[0] if len(names) == 1 else "the best of ours"
    wins, mean = int((ratios >= 1).sum()), float(np.exp(np.log(ratios).mean()))
    ties = sum(_overlap(*pair) for pair in pairs)
    within = f", {ties} of the {len(pairs)} within the spread of the samples" if ties else ""
    return (
        f"{name} is the fastest on {wins} of {len(pairs)} cases: {mean:.2f} times as fast as the "
        f"best of the others in the geometric mean, {ratios.min():.2f} to {ratios.max():.2f}"
        f"{within}."
    )


def _overlap(one: Record, other: Record) -> bool:
    """Whether the p20-p80 ranges of two records have a time in common."""
    lows, highs = ([r.percentile_ms(p) or 0.0 for r in (one, other)] for p in (20, 80))
    return max(lows) <= min(highs)
