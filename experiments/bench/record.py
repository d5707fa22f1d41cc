"""A record holds the measurement of one method on one case."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, ClassVar

import numpy as np

STATUSES = ("ok", "skipped", "wrong", "failed", "out_of_memory", "timeout", "cached")
BAD = ("wrong", "failed", "out_of_memory", "timeout")

# A row is noisy if the p80 of its samples is more than this many times their p20.
NOISY = 1.1


@dataclass(kw_only=True)
class Record:
    """The measurement of one method on one case; an objective adds the fields that name the two.

    Times are in ms; samples_ms is empty unless status is ok. key: what was measured, by which code,
    where; equal keys mean the same measurement. session: rows of one session were measured
    interleaved. prepare_ms: the median of several preparations. first_call_ms: wall times of whole
    calls on data never seen; empty where it was not measured. date: when the session began, UTC.
    """

    # Fields that older versions wrote, which nothing reads any more.
    retired: ClassVar[frozenset[str]] = frozenset()

    key: str
    session: str
    status: str
    reason: str = ""
    prepare_ms: float | None = None
    first_call_ms: list[float] = field(default_factory=list)
    samples_ms: list[float] = field(default_factory=list)
    checked: int = 0
    wrong: int = 0
    error: float | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    date: str = ""

    @property
    def name(self) -> str:
        """The name of the method."""
        raise NotImplementedError

    @property
    def case(self) -> tuple[object, ...]:
        """The fields that rows must have in common to be compared; the place comes first."""
        raise NotImplementedError

    @property
    def place(self) -> tuple[str, int | None]:
        """The device, and on a CPU the number of threads: times of two places never mix."""
        return place_of(self.environment)

    @property
    def place_name(self) -> str:
        device, threads = self.place
        return device if threads is None else f"{device}, {threads} threads"

    @property
    def median_ms(self) -> float | None:
        return self.percentile_ms(50)

    def percentile_ms(self, percent: float) -> float | None:
        return _percentile(tuple(self.samples_ms), percent) if self.samples_ms else None

    @property
    def spread(self) -> float | None:
        """p80 over p20 of the samples; None where there are less than two, or one takes no time."""
        low, high = self.percentile_ms(20), self.percentile_ms(80)
        return high / low if low and high and len(self.samples_ms) > 1 else None

    @property
    def is_noisy(self) -> bool:
        return self.spread is not None and self.spread > NOISY

    @property
    def median_first_call_ms(self) -> float | None:
        return float(np.median(self.first_call_ms)) if self.first_call_ms else None


# A report asks for the same median dozens of times.
@functools.lru_cache(maxsize=1 << 15)
def _percentile(samples: tuple[float, ...], percent: float) -> float:
    return float(np.percentile(samples, percent))


def key_of(parts: dict[str, Any]) -> str:
    """A short digest of what defines a measurement."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def now() -> str:
    """The present date and time, UTC, as ISO 8601 has it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def place_of(environment: dict[str, Any]) -> tuple[str, int | None]:
    """The device of an environment, and its threads if it is a CPU."""
    device = str(environment.get("device", "unknown device"))
    return device, None if environment.get("gpu") else environment.get("threads")
