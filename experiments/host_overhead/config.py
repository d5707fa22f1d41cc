"""The configuration of a measurement of host overhead."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.bench.keys import Rule, at_least, check, key


@dataclass
class LaunchConfig:
    """Measures what a launch costs the host; needs a CUDA device."""

    output: str = key(
        "results/launch",
        "The folder for launch.json, launch.html and three tables; made if absent.",
        "output=results/today",
    )
    batches: int = key(
        50, "How many batches of calls, and first calls, are timed.", "batches=20", at_least(1)
    )
    calls: int = key(
        200,
        "How many calls a batch has.",
        "calls=100",
        Rule("in 1..500, as the queue is short", lambda value: 1 <= value <= 500),
    )

    def __post_init__(self) -> None:
        check(self)
