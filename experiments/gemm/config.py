"""The configuration of a GEMM run, and of its report."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.bench.config import DTYPES, ReportConfig, Timing
from experiments.bench.keys import Rule, at_least, check, key, one_of


def _is_shape(text: str) -> bool:
    sizes = text.split("x")
    return len(sizes) == 3 and all(size.isdecimal() and int(size) >= 1 for size in sizes)


@dataclass
class GemmConfig:
    """Measures every GEMM variant against cuBLAS at one shape."""

    shape: str = key(
        "4096x4096x4096",
        "The sizes of the product: A is M x K, B is K x N.",
        "shape=8192x8192x1024",
        Rule("three sizes MxNxK", _is_shape),
    )
    dtype: str = key("float16", "The dtype of A and B.", "dtype=bfloat16", one_of(*DTYPES[:3]))
    accumulate: str = key(
        "fp32", "The precision of the sums.", "accumulate=fp16", one_of("fp32", "fp16")
    )
    b_rows: str = key(
        "k",
        "How B is stored: as k rows of n elements, or as n rows of k.",
        "b_rows=n",
        one_of("k", "n"),
    )
    variants: list[str] = key(
        [],
        "The variants to measure beside cuBLAS; * stands for any letters, and gemm is the choice "
        "that a user gets. None: all that compute this dtype with these sums.",
        "variants=gemm,wgmma_*",
    )
    seed: int = key(0, "The seed of the random operands.", "seed=1", at_least(0))
    timing: Timing = field(default_factory=lambda: Timing(max_samples=10, seconds=0.3))
    records: str = key(
        "results/gemm.jsonl",
        "The file to which records are appended, and which is searched for those that exist.",
        "records=today.jsonl",
    )
    force: bool = key(False, "Measure again what the file of records holds.", "force=true")

    def __post_init__(self) -> None:
        check(self)

    @property
    def sizes(self) -> tuple[int, int, int]:
        m, n, k = (int(size) for size in self.shape.split("x"))
        return m, n, k


@dataclass
class LadderConfig(ReportConfig):
    """Merges records of gemm into the tables and the plot of the GEMM ladder."""

    records: list[str] = key(
        ["results/gemm.jsonl"],
        "The files of records to merge.",
        "records=results/gemm.jsonl,other.jsonl",
    )
    output: str = key(
        "results/ladder",
        "The folder for the tables and the plot; it is made if it is absent.",
        "output=results/today",
    )
    reference: str = key(
        "",
        "The variant that speed-ups refer to; none: cuBLAS.",
        "reference=cublas",
    )
