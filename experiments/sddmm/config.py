"""The configuration of a run on a sparse matrix: of SDDMM, SpMM or a training step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from experiments.bench import config
from experiments.bench.config import DTYPES, Timing, require

OBJECTIVES = ("sddmm", "spmm", "training")
DEFAULT_RECORDS = "results/records.jsonl"


@dataclass
class Config:
    """One run: a matrix, an inner dimension k, and the methods to compare on it.

    objective: what is measured: sddmm, spmm, or training, which is sddmm with its gradients. k: in
    spmm the columns of the dense operand. transpose: spmm by the transpose of the matrix.

    sparsity, if given, replaces that of a uniform matrix. heads: the number of products at one
    pattern; 1 means 2-D operands. methods: names, or empty for all. kernels: measure each GPU
    kernel of ours by itself too. force: measure again what the record store already holds.

    problems: many runs instead of one (experiments/sddmm/problems.py). only: of these, the ones
    whose matrix or family has one of these names. part: of these, each N-th from the I-th on, as
    I/N. family: the class of patterns that the matrix belongs to. warm: generate and compile in
    parallel first what the problems need, as the command `warm` does.
    """

    objective: str = "sddmm"
    matrix: Any = MISSING
    transpose: bool = False
    sparsity: float | None = None
    k: int = 256
    heads: int = 1
    dtype: str = "float32"
    seed: int = 0
    device: str = "auto"
    methods: list[str] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)
    records: str = DEFAULT_RECORDS
    force: bool = False
    kernels: bool = False
    family: str = ""
    problems: dict[str, Any] = field(default_factory=dict)
    only: list[str] = field(default_factory=list)
    part: str = "0/1"
    warm: bool = True

    def __post_init__(self) -> None:
        require_objective(self.objective)
        if self.records == DEFAULT_RECORDS:
            self.records = default_records(self.objective)
        if self.transpose:
            require(self.objective == "spmm", "transpose", "false but in spmm", self.transpose)
        require(self.k >= 1, "k", ">= 1", self.k)
        require(self.heads >= 1, "heads", ">= 1", self.heads)
        require(self.dtype in DTYPES, "dtype", f"one of {', '.join(DTYPES)}", self.dtype)
        if self.sparsity is not None:
            rule = "a fraction in 0 <= sparsity < 1"
            require(0 <= self.sparsity < 1, "sparsity", rule, self.sparsity)


@dataclass
class ReportConfig(config.ReportConfig):
    """objective: what the records measure."""

    objective: str = "sddmm"

    def __post_init__(self) -> None:
        require_objective(self.objective)
        if self.records == [DEFAULT_RECORDS]:
            self.records = [default_records(self.objective)]


def default_records(objective: str) -> str:
    """The file of an objective's records, as they differ in their fields."""
    return DEFAULT_RECORDS if objective == "sddmm" else f"results/{objective}.jsonl"


def require_objective(name: str) -> None:
    require(name in OBJECTIVES, "objective", f"one of {', '.join(OBJECTIVES)}", name)
