"""The configuration of a GEMM run, and of its report."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.bench.config import DTYPES, ReportConfig, Timing, require


@dataclass
class GemmConfig:
    """Every GEMM variant against cuBLAS at one shape, "MxNxK".

    b_rows: b is stored as k rows of n, or as n rows of k. variants: names, or empty for all that
    compute this dtype with sums in `accumulate`. force: measure again what the store holds.
    """

    shape: str = "4096x4096x4096"
    dtype: str = "float16"
    accumulate: str = "fp32"
    b_rows: str = "k"
    variants: list[str] = field(default_factory=list)
    seed: int = 0
    timing: Timing = field(default_factory=lambda: Timing(max_samples=10, seconds=0.3))
    records: str = "results/gemm.jsonl"
    force: bool = False

    def __post_init__(self) -> None:
        sizes = self.shape.split("x")
        right = len(sizes) == 3 and all(size.isdecimal() and int(size) >= 1 for size in sizes)
        require(right, "shape", "three sizes MxNxK", self.shape)
        dtypes = DTYPES[:3]
        require(self.dtype in dtypes, "dtype", f"one of {', '.join(dtypes)}", self.dtype)
        require(self.accumulate in ("fp32", "fp16"), "accumulate", "fp32 or fp16", self.accumulate)
        require(self.b_rows in ("k", "n"), "b_rows", "k or n", self.b_rows)

    @property
    def sizes(self) -> tuple[int, int, int]:
        m, n, k = (int(size) for size in self.shape.split("x"))
        return m, n, k


@dataclass
class LadderConfig(ReportConfig):
    """A report on the GEMM ladder."""

    records: list[str] = field(default_factory=lambda: ["results/gemm.jsonl"])
    output: str = "results/ladder"
