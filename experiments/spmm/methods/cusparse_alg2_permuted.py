"""Calls cusparseSpMM with CSR_ALG2 on weights in S's order, as training has them in every step.

Every call puts the weights in the order of the transpose before the product; method
`cusparse_alg2` has them in that order beforehand. The call with op(A) = T, which reads the weights
in S's order, counts if it is faster. experiments/spmm/cusparse.py says how the library is called.
"""

from __future__ import annotations

from experiments.bench.methods import Run
from experiments.spmm import cusparse
from experiments.spmm.case import Case

PARTIAL_SUMS_ROUND = True


def refuses(case: Case) -> str | None:
    return cusparse.refuses_permuted(case, "cusparse_alg2")


def prepare(case: Case) -> Run:
    return cusparse.prepare(case, cusparse.CSR_ALG2, reorders=True)


def variant(case: Case) -> str:
    return cusparse.variant(case, cusparse.CSR_ALG2, reorders=True)
