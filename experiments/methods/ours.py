"""This package: a plan, and its run."""

from __future__ import annotations

import sddmm
from experiments.case import Case
from experiments.methods import Run


def refuses(case: Case) -> str | None:
    return None


def prepare(case: Case) -> Run:
    # A pattern of its own finds nothing that was prepared before: preparation is measured whole.
    pattern = sddmm.SparsePattern.from_csr(
        case.pattern.major_indices, case.pattern.col_indices, case.pattern.shape
    )
    plan = sddmm.plan(pattern, k=case.k, dtype=case.a.dtype, out_dtype=case.out_dtype)
    return lambda: plan.run(case.a, case.b)
