"""Records: what is known of one method on one case."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np

STATUSES = ("ok", "skipped", "wrong", "failed", "out_of_memory", "timeout", "cached")
BAD = ("wrong", "failed", "out_of_memory", "timeout")


@dataclass
class Record:
    """What is known of one method on one case. Times in ms; samples_ms is empty unless ok.

    key: what was measured, by which code, where; equal keys mean the same measurement. session:
    rows of one session were measured interleaved. prepare_ms: the median of several preparations.
    first_call_ms: wall times of whole calls on indices never seen; empty in records made before it
    was measured. error: largest error relative to |a_i| |b_j|. date: when the session began, UTC.
    """

    key: str
    session: str
    matrix: str
    definition: dict[str, Any]
    m: int
    n: int
    nnz: int
    k: int
    dtype: str
    seed: int
    method: str
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
    def sparsity(self) -> float:
        """The fraction of entries that are not stored; 1 for a matrix without entries."""
        entries = self.m * self.n
        return 1 - self.nnz / entries if entries else 1.0

    @property
    def place(self) -> tuple[str, int | None]:
        """The device, and on a CPU the number of threads: times of two places never mix."""
        return place_of(self.environment)

    @property
    def place_name(self) -> str:
        device, threads = self.place
        return device if threads is None else f"{device}, {threads} threads"

    @property
    def case(self) -> tuple[object, ...]:
        """What rows must have in common to be compared."""
        # A file is known by its content; its path may change.
        defined = {name: value for name, value in self.definition.items() if name != "path"}
        content = json.dumps(defined, sort_keys=True, default=str)
        name = self.matrix if not defined.get("digest") else ""
        sizes = (self.m, self.n, self.nnz, self.k)
        return (*self.place, name, content, *sizes, self.dtype, self.seed)

    @property
    def median_ms(self) -> float | None:
        return self.percentile_ms(50)

    def percentile_ms(self, percent: float) -> float | None:
        return float(np.percentile(self.samples_ms, percent)) if self.samples_ms else None

    @property
    def median_first_call_ms(self) -> float | None:
        return float(np.median(self.first_call_ms)) if self.first_call_ms else None

    @property
    def gflops(self) -> float | None:
        """Useful GFLOP/s, 2 nnz k over the median time."""
        return 2e-6 * self.nnz * self.k / self.median_ms if self.median_ms else None


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
