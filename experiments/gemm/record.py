"""What is known of one GEMM variant at one shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class GemmRecord:
    """Times in ms, of which samples_ms holds none unless status is ok.

    key: what was measured, by which code, where. session: rows of one session were measured
    interleaved. date: when the session began, UTC. error: relative Frobenius norm against float64,
    on random normal operands.
    """

    key: str
    session: str
    m: int
    n: int
    k: int
    dtype: str
    accumulate: str
    b_rows: str
    variant: str
    baseline: str
    status: str
    reason: str = ""
    samples_ms: list[float] = field(default_factory=list)
    error: float | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    date: str = ""

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def is_cublas(self) -> bool:
        return self.variant.startswith("cublas")

    @property
    def median_ms(self) -> float | None:
        return float(np.median(self.samples_ms)) if self.samples_ms else None

    @property
    def tflops(self) -> float | None:
        """TFLOP/s of 2 m n k operations."""
        return 2e-9 * self.m * self.n * self.k / self.median_ms if self.median_ms else None
