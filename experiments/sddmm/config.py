"""The configuration of an SDDMM run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from experiments.bench.config import DTYPES, Timing, require


@dataclass
class Config:
    """One run: a matrix, an inner dimension k, and the methods to compare on it.

    sparsity, if given, replaces that of a uniform matrix. methods: names, or empty for all.
    force: measure again what the record store already holds.
    """

    matrix: Any = MISSING
    sparsity: float | None = None
    k: int = 256
    dtype: str = "float32"
    seed: int = 0
    device: str = "auto"
    methods: list[str] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)
    records: str = "results/records.jsonl"
    force: bool = False

    def __post_init__(self) -> None:
        require(self.k >= 1, "k", ">= 1", self.k)
        require(self.dtype in DTYPES, "dtype", f"one of {', '.join(DTYPES)}", self.dtype)
        if self.sparsity is not None:
            rule = "a fraction in 0 <= sparsity < 1"
            require(0 <= self.sparsity < 1, "sparsity", rule, self.sparsity)
