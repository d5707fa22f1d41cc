"""Draws speed-ups over the re-implemented baseline. Importing this module needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.bench.objective import AnyObjective
from experiments.bench.plots import Axis, draw_speedups
from experiments.sddmm.labels import shown_names
from experiments.sddmm.record import Record

_AXES = {
    "k": Axis("K", lambda r: r.k, lambda k: f"{k:g}"),
    "sparsity": Axis("sparsity", lambda r: r.sparsity, lambda s: f"{round(s * 100, 4):g}%"),
}


def draw(objective: AnyObjective, records: Sequence[Record], output: Path) -> list[Path]:
    """speedup_over_k and speedup_over_sparsity: a panel per place, matrix and dtype."""
    names = shown_names(records)
    return draw_speedups(objective, records, _AXES, lambda r: (names[r.case], r.dtype), output)
