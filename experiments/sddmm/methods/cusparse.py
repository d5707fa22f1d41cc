"""Calls NVIDIA's cusparseSDDMM on CSR without torch's wrapper, with half operands as they are.

https://docs.nvidia.com/cuda/cusparse/#cusparsesddmm. Sums and values are float32 for float16
operands. Preparation makes the descriptors and calls cusparseSDDMM_preprocess once; torch's own
sampled_addmm (method `torch_csr`) does both in every call, and has no half types. The library knows
no heads: their products are calls one after another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.bench import cusparse
from experiments.bench.methods import Run
from experiments.sddmm.case import Case

_DTYPES = (torch.float16, torch.float32, torch.float64)
_ALG_DEFAULT = 0


def refuses(case: Case) -> str | None:
    return cusparse.refuses(case, "SDDMM", _DTYPES)


def prepare(case: Case) -> Run:
    # Zeros, not empty: beta = 0 times an unwritten NaN might be NaN.
    values = torch.zeros(case.heads, case.nnz, dtype=case.out_dtype, device=case.device)
    products = [_Product(head, own) for head, own in zip(case.one_head(), values, strict=True)]
    if case.heads == 1:
        return products[0]

    def run() -> Tensor:
        for product in products:
            product()
        return values

    return run


class _Product(cusparse.Prepared):
    """One product, ready to run. Every run overwrites and returns `values`."""

    def __init__(self, case: Case, values: Tensor) -> None:
        super().__init__("SDDMM", case.out_dtype)
        crow, cols, self._order = _csr(case)
        self._values = values
        factors = (
            self._dense(case.a.contiguous()),
            self._dense(case.b.mT.contiguous(), transposed=True),
        )
        sampled = self._csr((case.m, case.n), case.nnz, crow, cols, values)
        self._set_stream()
        self._arguments = self._preprocess(
            cusparse.NON_TRANSPOSE, (*factors, sampled), cusparse.DATA_TYPE[case.out_dtype],
            _ALG_DEFAULT,
        )  # fmt: skip

    def __call__(self) -> Tensor:
        self._set_stream()
        self._library.call("cusparseSDDMM", *self._arguments)
        if self._order is None:
            return self._values
        values = torch.empty_like(self._values)
        values[self._order] = self._values
        return values


def _csr(case: Case) -> tuple[Tensor, Tensor, Tensor | None]:
    """Row offsets and columns of one dtype, and the position of each nonzero if COO is sorted."""
    pattern = case.pattern
    if pattern.crow_indices is not None:
        return pattern.crow_indices, pattern.col_indices, None
    crow, cols, order = pattern.by_row
    dtype = torch.promote_types(crow.dtype, cols.dtype)
    return crow.to(dtype), cols.to(dtype), order
