"""The record of one method on one SDDMM case."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

from experiments.bench import record


@dataclass(kw_only=True)
class Record(record.Record):
    """A record of SDDMM: the matrix with its definition, k, and the method.

    scaled: whether samples were multiplied by the matrix's values. error: the largest error
    relative to |a_i| |b_j|, and to the value. family: the class of patterns. kernel: the GPU kernel
    of ours that computed. predicted_us: what the planner expects of each kernel; with `ours` only.
    """

    retired: ClassVar[frozenset[str]] = frozenset({"facts"})

    matrix: str
    definition: dict[str, Any]
    m: int
    n: int
    nnz: int
    k: int
    dtype: str
    seed: int
    method: str
    heads: int = 1
    scaled: bool = False
    family: str = ""
    kernel: str = ""
    predicted_us: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.method

    @property
    def case(self) -> tuple[object, ...]:
        # A file is identified by its content; its path may change.
        defined = {name: value for name, value in self.definition.items() if name != "path"}
        content = json.dumps(defined, sort_keys=True, default=str)
        name = self.matrix if not defined.get("digest") else ""
        sizes = (self.m, self.n, self.nnz, self.k)
        kind = self.dtype, self.heads, self.scaled
        return (*self.place, name, content, *sizes, *kind, self.seed)

    @property
    def is_forced(self) -> bool:
        """Whether the method is a kernel of ours by its name."""
        return bool(self.kernel) and self.kernel == self.method

    @property
    def sparsity(self) -> float:
        """The fraction of entries that are not stored; 1 for a matrix without entries."""
        entries = self.m * self.n
        return 1 - self.nnz / entries if entries else 1.0

    @property
    def gflops(self) -> float | None:
        """Useful GFLOP/s, 2 nnz k heads over the median time."""
        return 2e-6 * self.nnz * self.k * self.heads / self.median_ms if self.median_ms else None
