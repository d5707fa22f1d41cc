"""Is a result right? Against float64, before any time is taken."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import sddmm
from experiments.sddmm.case import Case
from sddmm import testing

# Above this many multiply-adds a random sample of the nonzeros is verified instead of all.
_FULL_WORK = 4_000_000_000


@dataclass(frozen=True)
class Verdict:
    """checked of nnz values compared, how many were wrong, and the largest error.

    error is relative to |a_i| |b_j|, the norms of the row and the column of each value.
    """

    checked: int
    wrong: int
    error: float


class Truth:
    """The float64 values of a case and how far a result may be from them; made once."""

    def __init__(self, case: Case, full_work: int = _FULL_WORK) -> None:
        self.nnz = case.nnz
        self._chosen = _choose(case, full_work)
        rows, cols = case.pattern.row_ids, case.pattern.col_indices
        if self._chosen is not None:
            rows, cols = rows[self._chosen], cols[self._chosen]
        sampled = sddmm.SparsePattern.from_coo(rows, cols, case.pattern.shape)
        self._values = testing.reference(sampled, case.a, case.b)
        self._sampled, self._case = sampled, case
        self._bounds: dict[torch.dtype, Tensor] = {}
        norms = testing.magnitude(sampled, case.a, case.b)
        self._scale = norms.clamp_min(torch.finfo(torch.float64).tiny)

    def judge(self, values: Tensor) -> Verdict:
        """Compare a method's values, (nnz,) in the pattern's order."""
        if tuple(values.shape) != (self.nnz,):
            return Verdict(0, self.nnz, float("inf"))
        if self._chosen is not None:
            values = values[self._chosen]
        wrong = int(testing.mismatches(values, self._values, self._bound(values.dtype)).sum())
        errors = (values.double() - self._values).abs() / self._scale
        worst = float(errors.nan_to_num(nan=torch.inf).max()) if errors.numel() else 0.0
        return Verdict(values.numel(), wrong, worst)

    def _bound(self, dtype: torch.dtype) -> Tensor:
        """How far values of this dtype may be off; a method need not give the case's."""
        if dtype not in self._bounds:
            self._bounds[dtype] = testing.error_bound(
                self._sampled, self._case.a, self._case.b, self._values, out_dtype=dtype
            )
        return self._bounds[dtype]


def _choose(case: Case, full_work: int) -> Tensor | None:
    """None for all nonzeros, else a seeded sample with the first and the last among them."""
    if case.nnz * case.k <= full_work:
        return None
    count = max(2, full_work // case.k)
    generator = torch.Generator().manual_seed(case.seed)
    chosen = torch.randint(case.nnz, (count,), generator=generator)
    chosen[0], chosen[-1] = 0, case.nnz - 1
    return chosen.sort().values.to(case.device)
