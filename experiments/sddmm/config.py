"""The configuration of an SDDMM run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from experiments.bench.config import DTYPES, Timing, require


@dataclass
class Config:
    """One run: a matrix, an inner dimension k, and the methods to compare on it.

    sparsity, if given, replaces that of a uniform matrix. heads: the number of products at one
    pattern; 1 means 2-D operands. methods: names, or empty for all. kernels: measure each GPU
    kernel of ours by itself too. force: measure again what the record store already holds.

    problems: many runs instead of one (experiments/sddmm/problems.py). only: of these, the ones
    whose matrix or family has one of these names. part: of these, each N-th from the I-th on, as
    I/N. family: the class of patterns that the matrix belongs to. warm: generate and compile in
    parallel first what the problems need, as the command `warm` does.
    """

    matrix: Any = MISSING
    sparsity: float | None = None
    k: int = 256
    heads: int = 1
    dtype: str = "float32"
    seed: int = 0
    device: str = "auto"
    methods: list[str] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)
    records: str = "results/records.jsonl"
    force: bool = False
    kernels: bool = False
    family: str = ""
    problems: dict[str, Any] = field(default_factory=dict)
    only: list[str] = field(default_factory=list)
    part: str = "0/1"
    warm: bool = True

    def __post_init__(self) -> None:
        require(self.k >= 1, "k", ">= 1", self.k)
        require(self.heads >= 1, "heads", ">= 1", self.heads)
        require(self.dtype in DTYPES, "dtype", f"one of {', '.join(DTYPES)}", self.dtype)
        if self.sparsity is not None:
            rule = "a fraction in 0 <= sparsity < 1"
            require(0 <= self.sparsity < 1, "sparsity", rule, self.sparsity)
