"""The configuration of a measurement of host overhead."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.bench.config import require


@dataclass
class LaunchConfig:
    """output: the folder for launch.json and launch.md. batches of `calls` calls are timed."""

    output: str = "results/launch"
    batches: int = 50
    calls: int = 200

    def __post_init__(self) -> None:
        require(self.batches >= 1, "batches", ">= 1", self.batches)
        require(1 <= self.calls <= 500, "calls", "in 1..500, as the queue is short", self.calls)
