"""Calls NVIDIA's cusparseSpMM on CSR without torch's wrapper, with half operands as they are.

https://docs.nvidia.com/cuda/cusparse/#cusparsespmm. Half types are computed in float32 and have
results of their own type. Preparation makes the descriptors and calls cusparseSpMM_preprocess;
torch (method `torch_csr`) prepares in every call. Where there are several ways to call the library,
each is timed once and the fastest counts: heads one after another, or as a strided batch, for which
the columns are copied for each head; the transpose as op(A) = T, or as the CSR of the transpose.
The weights of that CSR are in its order beforehand, or every call puts them in its order, by the
faster operation of reordering.py.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.bench import cusparse
from experiments.bench.methods import Run
from experiments.sddmm.device_time import device_ms
from experiments.spmm.case import Case
from experiments.spmm.reordering import OPERATIONS, Reordering

# Values of cusparseSpMMAlg_t.
CSR_ALG2, CSR_ALG3 = 6, 12


class Way(NamedTuple):
    """One way to call the library for a case.

    reordering: the operation by which every call puts the weights in the order of the transpose;
    empty if they are in the order of the call's matrix before it.
    """

    algorithm: int
    is_batch: bool
    is_op: bool
    reordering: str = ""

    def words(self, case: Case) -> str:
        """The choices that the case leaves; empty where there is none."""
        heads = "strided batch" if self.is_batch else "heads one by one"
        operation = "op(A) = T" if self.is_op else "CSR of the transpose"
        reordering = f"weights by torch.{self.reordering}"
        words = (
            (heads, case.heads > 1),
            (operation, case.transpose),
            (reordering, bool(self.reordering)),
        )
        return ", ".join(text for text, is_choice in words if is_choice)


def refuses(case: Case) -> str | None:
    return cusparse.refuses(case, "SpMM")


def refuses_permuted(case: Case, sorted_beforehand: str) -> str | None:
    """The refusal of a method that reorders the weights of the method `sorted_beforehand`."""
    if not case.transpose:
        return f"W is not transposed, so no call reorders its weights: see {sorted_beforehand}"
    return refuses(case)


def prepare(case: Case, algorithm: int, reorders: bool = False) -> Run:
    """The fastest way of this algorithm, ready to run.

    reorders: whether the weights are in S's order before a call, instead of in that of the way.
    """
    return _Product(case, _fastest(case, algorithm, reorders))


def variant(case: Case, algorithm: int, reorders: bool = False) -> str:
    """The fastest way in words."""
    return _fastest(case, algorithm, reorders).words(case)


# The fastest way of the cases measured last: timed preparations do not try all again.
fastest_ways: dict[object, Way] = {}


def _fastest(case: Case, algorithm: int, reorders: bool = False) -> Way:
    key = (
        algorithm, reorders, case.matrix, case.m, case.n, case.nnz, case.k, case.heads, case.dtype,
        case.seed, case.transpose,
    )  # fmt: skip
    if key not in fastest_ways:
        ways = _ways(case, algorithm, reorders)
        fastest_ways[key] = ways[0] if len(ways) == 1 else fastest_of(case, ways)
    return fastest_ways[key]


def _ways(case: Case, algorithm: int, reorders: bool) -> list[Way]:
    """The ways that there are. CSR_ALG3 has neither batches nor op(A) = T.

    op(A) = T reads the weights in S's order, so none of its calls reorders them.
    """
    has_choice = algorithm != CSR_ALG3
    batches = (False, True) if has_choice and case.heads > 1 else (False,)
    operations = (False, True) if has_choice and case.transpose else (False,)
    reorderings = OPERATIONS if reorders and case.view.perm is not None else ("",)
    choices = itertools.product(batches, operations, reorderings)
    ways = [Way(algorithm, batch, is_op, "" if is_op else own) for batch, is_op, own in choices]
    return list(dict.fromkeys(ways))


def fastest_of(case: Case, ways: list[Way]) -> Way:
    """The way of the least device time; one that the library refuses does not count."""
    times: dict[Way, float] = {}
    errors: list[RuntimeError] = []
    for way in ways:
        try:
            times[way] = device_ms(_Product(case, way))
        except RuntimeError as error:
            errors.append(error)
    if not times:
        raise errors[0]
    return min(times, key=lambda way: times[way])


class _Product(cusparse.Prepared):
    """One product, ready to run. Every run overwrites and returns `out`."""

    def __init__(self, case: Case, way: Way) -> None:
        super().__init__("SpMM", case.dense.dtype)
        self.case, self.way = case, way
        # Zeros, not empty: beta = 0 times an unwritten NaN might be NaN.
        self._out = torch.zeros(case.out_shape, dtype=case.dense.dtype, device=case.device)
        self._reordering = Reordering(case, way.reordering) if way.reordering else None
        self._set_stream()
        heads = [(0, case.heads)] if way.is_batch else [(h, 1) for h in range(case.heads)]
        self._calls = [self._prepared(case, way, first, count) for first, count in heads]

    def _prepared(self, case: Case, way: Way, first: int, count: int) -> tuple[Any, ...]:
        """The arguments of the call for `count` heads from the first, preprocessed."""
        matrices = (
            self._sparse(case, way, first, count),
            self._heads(case.dense, first, count),
            self._heads(self._out, first, count),
        )
        operation = cusparse.TRANSPOSE if way.is_op else cusparse.NON_TRANSPOSE
        sums = torch.promote_types(case.dense.dtype, torch.float32)
        return self._preprocess(operation, matrices, cusparse.DATA_TYPE[sums], way.algorithm)

    def _sparse(self, case: Case, way: Way, first: int, count: int) -> ctypes.c_void_p:
        view = case.pattern.by_row if way.is_op else case.view
        weights = self._weights.view(case.heads, -1)
        indptr, indices = view.indptr, view.indices.to(view.indptr.dtype)
        if count > 1:
            indptr, indices = indptr.repeat(count), indices.repeat(count)
        weights = weights[first : first + count].contiguous()
        rows = view.indptr.numel() - 1
        shape = (rows, case.m + case.n - rows)
        descriptor = self._csr(shape, case.nnz, indptr, indices, weights)
        if count > 1:
            self._library.call("cusparseCsrSetStridedBatch", descriptor, count, rows + 1, case.nnz)
        return descriptor

    @property
    def _weights(self) -> Tensor:
        """The weights as the library reads them, ([heads,] nnz)."""
        if self._reordering is not None:
            return self._reordering.ordered
        return self.case.weights if self.way.is_op else self.case.weights_by_view

    def _heads(self, x: Tensor, first: int, count: int) -> ctypes.c_void_p:
        """The descriptor of `count` heads of x from the first."""
        head = x.view(-1, *x.shape[-2:])[first]
        descriptor = self._dense(head)
        if count > 1:
            self._library.call("cusparseDnMatSetStridedBatch", descriptor, count, head.numel())
        return descriptor

    def __call__(self) -> Tensor:
        self._set_stream()
        if self._reordering is not None:
            self._reordering()
        for arguments in self._calls:
            self._library.call("cusparseSpMM", *arguments)
        return self._out
