"""Verifies SDDMM results against float64, before any time is taken."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import sddmm
from experiments.bench.methods import Run
from experiments.bench.verify import Trial, Verdict
from experiments.sddmm.case import Case
from sddmm import testing

# Above this many multiply-adds a random sample of the nonzeros is verified instead of all.
_FULL_WORK = 4_000_000_000


class Reference:
    """The float64 values of a case, and how far a result may be from them.

    The largest error of a verdict is relative to |a_i| |b_j|, the norms of the row and the column
    of each value, and to the matrix's value where samples are multiplied by it.
    """

    def __init__(self, case: Case, full_work: int = _FULL_WORK) -> None:
        self._shape = (case.nnz,) if case.heads == 1 else (case.heads, case.nnz)
        self._sample = _sample(case, full_work)
        rows, cols = case.pattern.row_ids, case.pattern.col_indices
        if self._sample is not None:
            rows, cols = rows[self._sample], cols[self._sample]
        self._sparse: Any = sddmm.SparsePattern.from_coo(rows, cols, case.pattern.shape)
        norms = testing.magnitude(self._sparse, case.a, case.b)
        if case.values is not None:
            values = case.values if self._sample is None else case.values[self._sample]
            self._sparse = torch.sparse_coo_tensor(
                torch.stack([rows, cols]), values, case.pattern.shape, check_invariants=False
            )
            norms *= values.double().abs()
        self._values = testing.reference(self._sparse, case.a, case.b)
        self._case = case
        self._bounds: dict[torch.dtype, Tensor] = {}
        self._scale = norms.clamp_min(torch.finfo(torch.float64).tiny)

    def check(self, values: Tensor, extra_roundings: int = 0) -> Verdict:
        """Compare a method's values, ([heads,] nnz) in the pattern's order.

        extra_roundings: how often a peer may round, in its own dtype, a number as large as the
        norms.
        """
        if tuple(values.shape) != self._shape:
            return Verdict(0, math.prod(self._shape), float("inf"))
        if self._sample is not None:
            values = values[..., self._sample]
        bound = self._bound(values.dtype)
        if extra_roundings:
            bound = bound + extra_roundings * torch.finfo(values.dtype).eps / 2 * self._scale
        wrong = int(testing.mismatches(values, self._values, bound).sum())
        errors = (values.double() - self._values).abs() / self._scale
        worst = float(errors.nan_to_num(nan=torch.inf).max()) if errors.numel() else 0.0
        return Verdict(values.numel(), wrong, worst)

    def _bound(self, dtype: torch.dtype) -> Tensor:
        """The error bound of values of this dtype, which a method chooses for itself."""
        if dtype not in self._bounds:
            self._bounds[dtype] = testing.error_bound(
                self._sparse, self._case.a, self._case.b, self._values, out_dtype=dtype
            )
        return self._bounds[dtype]


def trials(
    first_call: Callable[[], Run], run: Run, reference: Reference, extra_roundings: int = 0
) -> list[Trial]:
    """The first call and a prepared run, each with NaN in memory that it did not write."""
    check = functools.partial(reference.check, extra_roundings=extra_roundings)
    return [Trial(poisoned(lambda: first_call()()), check), Trial(poisoned(run), check)]


def poisoned(call: Run) -> Run:
    """The call with NaN in memory that it did not write."""

    def poisoned_call() -> Any:
        with testing.poisoned_outputs():
            return call()

    return poisoned_call


def _sample(case: Case, full_work: int) -> Tensor | None:
    """None for all nonzeros, else a seeded sample with the first and the last among them."""
    work_per_nonzero = case.k * case.heads
    if case.nnz * work_per_nonzero <= full_work:
        return None
    count = max(2, full_work // work_per_nonzero)
    generator = torch.Generator().manual_seed(case.seed)
    sample = torch.randint(case.nnz, (count,), generator=generator)
    sample[0], sample[-1] = 0, case.nnz - 1
    return sample.sort().values.to(case.device)
