"""Which cases the package must refuse, and which words the refusal must hold."""

from __future__ import annotations

import re

import torch

from tests.fuzz.build import dtype_of
from tests.fuzz.case import HALF, SCIPY, Case

# What is wrong with the arguments: words of the error.
HOSTILE = {
    "k": r"inner dimensions differ|made for k=",
    "m": r"a must have \d+ rows",
    "n": r"b \d+ columns|S has shape",
    "dtype_b": r"dtypes must agree",
    "one_dimension": r"a must have 2 dimensions",
    "heads": r"both be 2-D, or both 3-D|heads",
    "integer_a": r"a must be one of float16",
    "complex_a": r"a must be one of float16",
    "sparse_a": r"a must be a dense tensor",
    "meta_a": r"a is on meta",
    "index_high": r"(row|col)_indices\[\d+\] is",
    "index_negative": r"(row|col)_indices\[\d+\] is",
    "crow_falls": r"crow_indices must",
    "precision": r"precision must be one of",
    "backend": r"backend must be one of",
    "kernel": r"kernel",
    "out_dtype": r"out_dtype must be one of",
    "out_shape": r"out must be a contiguous",
    "out_strides": r"out must be a contiguous",
    "values_dtype": r"S has values of",
}
BAD_INDEX = r"(row|col|crow)_indices"
_KERNEL = r"kernel '[\w]+' |kernel must be|no tile kernel computes|holds no row"


def expected_refusal(case: Case, nnz: int) -> str | None:
    """A pattern for the words of the refusal, or None if the case must be served."""
    if case.hostile is not None:
        return HOSTILE[case.hostile]
    if case.precision != "ieee" and case.dtype != "float32":
        return r"precision='\w+' applies to float32 only"
    if case.entry == "sampled_addmm" and not case.has_values:
        return r"S must have values for sampled_addmm"
    reasons = [x for x in (_by_container(case), _by_backend(case, nnz)) if x is not None]
    return "|".join(reasons) or None


def _by_container(case: Case) -> str | None:
    if case.kind in SCIPY and case.entry in ("sddmm", "sampled_addmm"):
        if case.out in HALF and case.heads is None:
            return r"S is a scipy or cupyx matrix, which cannot hold"
        if case.gradients:
            return r"S is a scipy or cupyx matrix, which cannot carry gradients"
    if case.entry == "plan_out" and differentiable(case):
        return r"out= cannot be differentiated"
    return None


def differentiable(case: Case) -> bool:
    """Whether autograd has something to differentiate."""
    return bool(case.gradients if case.weighted else case.gradients.replace("v", ""))


def _by_backend(case: Case, nnz: int) -> str | None:
    if case.backend == "cuda" and case.device == "cpu":
        return r"no backend serves this problem: cuda:"
    if case.backend == "cpu" and case.on != "cpu":
        return r"no backend serves this problem: cpu: the pattern is on"
    if case.backend == "torch_csr":
        if case.dtype in HALF:
            return r"torch.sparse.sampled_addmm computes float32 and float64"
        if case.k == 0 or nnz == 0:
            return r"does not take empty problems"
    return None


def may_refuse(case: Case, text: str) -> bool:
    """Whether a refusal that need not come is no fault: of a kernel that was demanded by name."""
    return case.kernel is not None and re.search(_KERNEL, text) is not None


def applicable(case: Case, nnz: int) -> bool:
    """Whether what is hostile in a case can be built; else it is an ordinary case."""
    hostile, weighted = case.hostile, case.weighted
    if hostile in ("index_high", "index_negative"):
        return nnz > 0 and case.heads != 0
    if hostile == "crow_falls":
        return "csr" in case.kind and nnz > 0 and case.m > 1 and case.heads != 0
    if hostile in ("m", "n"):
        return case.entry != "op"  # which takes m and n from the operands
    if hostile in ("precision", "out_dtype"):
        return case.entry != "sampled_addmm"
    if hostile in ("backend", "kernel"):
        return case.entry in ("plan", "plan_out")
    if hostile in ("out_shape", "out_strides"):
        return case.entry == "plan_out" and nnz * (case.heads or 1) > 1 and case.heads != 0
    if hostile == "values_dtype":
        return weighted and (case.entry != "sampled_addmm" or case.beta != 0)
    if hostile == "meta_a" and case.entry == "op":
        return False  # torch runs the operator's shapes alone
    if hostile in ("complex_a", "sparse_a", "meta_a", "integer_a"):
        return not case.numpy_operands
    return True


def wrong_dtype(dtype: str) -> torch.dtype:
    return dtype_of("float64" if dtype != "float64" else "float32")
