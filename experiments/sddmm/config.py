"""The configuration of a run on a sparse matrix: of SDDMM, SpMM, attention or a training step."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from experiments.bench import config
from experiments.bench.config import DTYPES, Timing
from experiments.bench.keys import Rule, at_least, check, key, one_of, require

OBJECTIVES = ("sddmm", "spmm", "training", "attention", "distributed")
DEFAULT_RECORDS = "results/records.jsonl"

_PART = re.compile(r"\d+/\d+")


def part_of(text: str) -> tuple[int, int]:
    """I and N of I/N."""
    first, _, count = text.partition("/")
    return int(first), int(count)


def _is_part(text: str) -> bool:
    return _PART.fullmatch(text) is not None and operator.lt(*part_of(text))


def _objective() -> Any:
    return key(
        "sddmm",
        "What is measured: sddmm; spmm, whose K is the number of columns of the dense operand; "
        "training, which is sddmm with its gradients; attention, whose K is d; or distributed, "
        "which is all of these by several ranks.",
        "objective=spmm",
        one_of(*OBJECTIVES),
    )


@dataclass
class Config:
    """Measures every method on a sparse matrix: verifies, times and records it."""

    objective: str = _objective()
    matrix: Any = key(
        MISSING,
        "The sparse matrix; several, separated by commas, are measured one after another.",
        "matrix=10000x10000",
    )
    transpose: bool = key(
        False, "Multiply by the transpose of the matrix; in spmm only.",
        "objective=spmm transpose=true",
    )  # fmt: skip
    backward: bool = key(
        False, "Compute the gradients too, as a step of training does; in attention only.",
        "+study=attention_smoke backward=true",
    )  # fmt: skip
    scaled: bool = key(
        False,
        "Multiply the samples by values of the matrix, as sddmm(S, a, b) does; in sddmm only.",
        "+study=scaled",
    )
    sparsity: float | None = key(
        None,
        "The fraction of entries of a uniform matrix that are not stored; null: the matrix's own.",
        "sparsity=0.99",
        Rule("a fraction in 0 <= sparsity < 1", lambda value: 0 <= value < 1),
    )
    k: int = key(
        256,
        "The inner dimension: A is M x K, B is K x N; in spmm the columns of the dense operand.",
        "k=512",
        at_least(1),
    )
    heads: int = key(
        1,
        "The number of products at one pattern, as in attention; 1: operands of two dimensions.",
        "heads=8",
        at_least(1),
    )
    dtype: str = key("float32", "The dtype of the dense operands.", "dtype=float16",
                     one_of(*DTYPES))  # fmt: skip
    seed: int = key(0, "The seed of the random operands.", "seed=1", at_least(0))
    device: str = key(
        "auto",
        "The device that computes; auto: the GPU where our kernels run on it, or the CPU.",
        "device=cpu",
        one_of("auto", "cpu", "cuda"),
    )
    methods: list[str] = key(
        [], "The methods to compare; none: all of them.", "methods=ours,torch_csr"
    )
    timing: Timing = field(default_factory=Timing)
    records: str = key(
        DEFAULT_RECORDS,
        "The file to which records are appended, and which is searched for those that exist; "
        "objectives other than sddmm have a file of their own.",
        "records=today.jsonl",
    )
    force: bool = key(False, "Measure again what the file of records holds.", "force=true")
    kernels: bool = key(
        False, "Measure each GPU kernel of this package by itself too.", "kernels=true"
    )
    family: str = key(
        "", "The class of patterns that the matrix belongs to, for reports.", "family=uniform"
    )
    problems: dict[str, Any] = key(
        {},
        "Many runs instead of one, as studies list them; experiments/sddmm/problems.py describes "
        "the entries.",
        "+study=regret",
    )
    folder: str = key(
        "",
        "A folder of matrix files, each of which is a case; what cannot be read is listed with the "
        "reason.",
        "+study=folder folder=downloads/suitesparse",
    )
    glob: str = key(
        "*",
        "Of the files of the folder, those whose path below it, or whose name, matches.",
        "+study=folder folder=dlmc glob='transformer/*'",
    )
    min_nnz: int = key(
        0, "Of the files of the folder, those with as many nonzeros at least.", "min_nnz=10000",
        at_least(0),
    )  # fmt: skip
    max_nnz: int | None = key(
        None,
        "Of the files of the folder, those with as many nonzeros at most; null: any number.",
        "max_nnz=100000000",
        at_least(0),
    )
    only: list[str] = key(
        [],
        "Of the problems of a study, those whose matrix or family has one of these names; none: "
        "all of them.",
        "+study=regret only=causal",
    )
    part: str = key(
        "0/1",
        "Of the problems of a study, each N-th from the I-th on, to share them among machines.",
        "+study=regret part=0/4",
        Rule("I/N with I < N", _is_part),
    )
    warm: bool = key(
        True,
        "Generate and compile in parallel first what the problems need, as the command warm does.",
        "+study=regret warm=false",
    )
    way: str = key(
        "auto",
        "How rows of B travel between ranks; auto: as the counts of the matrix choose.",
        "+distributed=ring way=rows",
        one_of("auto", "ring", "rows", "slices", "row_slices"),
    )
    replicas: int = key(
        1,
        "How many ranks divide the columns of each block of rows, of those that torchrun starts.",
        "+distributed=replicas replicas=4",
        at_least(1),
    )

    def __post_init__(self) -> None:
        check(self)
        if self.records == DEFAULT_RECORDS:
            self.records = default_records(self.objective)
        if self.transpose:
            require(self.objective == "spmm", "transpose", "false but in spmm", self.transpose)
        if self.scaled:
            require(self.objective == "sddmm", "scaled", "false but in sddmm", self.scaled)
        if self.backward:
            is_attention = self.objective == "attention"
            require(is_attention, "backward", "false but in attention", self.backward)


@dataclass
class ReportConfig(config.ReportConfig):
    """Merges records of run into tables and plots."""

    objective: str = _objective()

    def __post_init__(self) -> None:
        check(self)
        if self.records == [DEFAULT_RECORDS]:
            self.records = [default_records(self.objective)]


def default_records(objective: str) -> str:
    """The file of an objective's records, as they differ in their fields."""
    return DEFAULT_RECORDS if objective == "sddmm" else f"results/{objective}.jsonl"
