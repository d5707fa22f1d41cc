"""The configuration that objectives share: what may be set, its type and its range."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

DTYPES = ("float16", "bfloat16", "float32", "float64")


def require(condition: bool, key: str, rule: str, value: Any) -> None:
    """Raise ValueError with the rule that the value of a key breaks."""
    if not condition:
        raise ValueError(f"{key} must be {rule}, got {value}")


def refuse_absurd(config: Any, prefix: str = "") -> None:
    """Raise ValueError for a number that no part of a run can take, by its key."""
    for f in fields(config):
        key, value = f"{prefix}{f.name}", getattr(config, f.name)
        if is_dataclass(value):
            refuse_absurd(value, f"{key}.")
        elif isinstance(value, float):
            require(math.isfinite(value), key, "finite", value)
        elif isinstance(value, int):
            require(abs(value) < 1 << 63, key, "below 2^63", value)
            require(f.name != "seed" or value >= 0, key, ">= 0", value)


@dataclass
class Timing:
    """When a method has been timed enough, and when it takes too long.

    calls: how many preparations and first calls of a method are timed, at most. warm_up_ms: the
    time of the uncounted runs before a method's samples on a GPU, which last until times are steady
    if it is null. slowest: a method whose verified run takes so many times that of the fastest, if
    it is given, is timed once, and its preparation is not. samples_per_round: how many samples of
    a method are taken before the next has its turn.
    """

    min_samples: int = 3
    max_samples: int = 50
    seconds: float = 1.0
    timeout_s: float = 600.0
    calls: int = 20
    warm_up_ms: float | None = None
    samples_per_round: int = 5
    slowest: float | None = None

    def __post_init__(self) -> None:
        require(
            1 <= self.min_samples <= self.max_samples,
            "timing.min_samples",
            f"in 1..max_samples = {self.max_samples}",
            self.min_samples,
        )
        require(
            self.samples_per_round >= 1, "timing.samples_per_round", ">= 1", self.samples_per_round
        )
        require(self.calls >= 1, "timing.calls", ">= 1", self.calls)
        if self.slowest is not None:
            require(self.slowest >= 1, "timing.slowest", ">= 1", self.slowest)
        if self.warm_up_ms is not None:
            require(self.warm_up_ms >= 0, "timing.warm_up_ms", ">= 0", self.warm_up_ms)
        require(self.seconds >= 0, "timing.seconds", ">= 0", self.seconds)
        # The longest that a timer of the system takes is far beyond; a run is not.
        in_range = 0 < self.timeout_s <= 1e9
        require(in_range, "timing.timeout_s", "in 0 < timeout_s <= 1e9", self.timeout_s)


@dataclass
class ReportConfig:
    """records: the files to merge. output: the folder for the reports and the pictures.


    plots: whether pictures are drawn. html: whether report.html is written, which holds the tables
    and the pictures. reference: the method that speed-ups refer to; "" for the
    objective's baseline in tables and for the fastest peer of each case in pictures.
    compare: two commits to set side by side instead, in compare.md.
    """

    records: list[str] = field(default_factory=lambda: ["results/records.jsonl"])
    output: str = "results/report"
    plots: bool = True
    reference: str = ""
    html: bool = True
    compare: list[str] = field(default_factory=list)
