"""Calls cusparseSpMM with CUSPARSE_SPMM_CSR_ALG3, which is deterministic and suits even patterns.

experiments/spmm/cusparse.py says how it is called.
"""

from __future__ import annotations

from experiments.bench.methods import Run
from experiments.spmm import cusparse
from experiments.spmm.case import Case

PARTIAL_SUMS_ROUND = True


def refuses(case: Case) -> str | None:
    return cusparse.refuses(case)


def prepare(case: Case) -> Run:
    return cusparse.prepare(case, cusparse.CSR_ALG3)


def variant(case: Case) -> str:
    return cusparse.variant(case, cusparse.CSR_ALG3)
