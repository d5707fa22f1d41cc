"""The torch operators: SDDMM and its companion SpMM on raw dense tensors.

`torch.ops.sddmm.sddmm` and `torch.ops.sddmm.spmm` take index tensors, not sparse tensors, so that
autograd, autocast, fake tensors and torch.compile see plain operators. Each one's gradient is made
of the other (`gradients.py`), so both can be differentiated any number of times.

rows: crow_indices (m + 1,) if `compressed`, else row_indices (nnz,). cols: (nnz,). values: (nnz,)
or None. backend, kernel_name: as `backend` and `kernel` of `sddmm.plan` (torch's own compiler has
an argument called kernel).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sddmm.cache import PATTERNS
from sddmm.operands import check_operands, check_values, problem_of
from sddmm.ops import autocast, gradients
from sddmm.ops.spmm import spmm, spmm_fake
from sddmm.plan import prepare_once
from sddmm.sparse.pattern import SparsePattern

_library = torch.library.Library("sddmm", "DEF")
_library.define(
    "sddmm(Tensor rows, Tensor cols, Tensor a, Tensor b, Tensor? values, *, "
    "bool compressed=False, float alpha=1.0, ScalarType? out_dtype=None, "
    'str precision="ieee", str? backend=None, str? kernel_name=None) -> Tensor'
)
_library.define(
    "spmm(Tensor rows, Tensor cols, Tensor values, Tensor dense, *, SymInt m, SymInt n, "
    "bool compressed=False, bool transpose=False) -> Tensor"
)


def _pattern(rows: Tensor, cols: Tensor, m: int, n: int, compressed: bool) -> SparsePattern:
    make = SparsePattern.from_csr if compressed else SparsePattern.from_coo
    return PATTERNS.of_operator(make(rows, cols, (m, n), copy=False))


def _sddmm(
    rows: Tensor,
    cols: Tensor,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    *,
    compressed: bool = False,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
    precision: str = "ieee",
    backend: str | None = None,
    kernel_name: str | None = None,
) -> Tensor:
    check_operands(a, b)
    pattern = _pattern(rows, cols, a.shape[-2], b.shape[-1], compressed)
    problem = problem_of(pattern, a, b, out_dtype, precision)
    if values is not None:
        check_values(values, problem)
    return prepare_once(pattern, problem, backend, kernel_name).compute(a, b, values, alpha)


def _sddmm_fake(
    rows: Tensor,
    cols: Tensor,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    *,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> Tensor:
    check_operands(a, b)
    return a.new_empty((*a.shape[:-2], cols.shape[0]), dtype=out_dtype or a.dtype)


def _spmm(
    rows: Tensor,
    cols: Tensor,
    values: Tensor,
    dense: Tensor,
    *,
    m: int,
    n: int,
    compressed: bool = False,
    transpose: bool = False,
) -> Tensor:
    return spmm(_pattern(rows, cols, m, n, compressed), values, dense, transpose)


for _name, _implementation, _fake, _backward in (
    ("sddmm", _sddmm, _sddmm_fake, gradients.sddmm_backward),
    ("spmm", _spmm, spmm_fake, gradients.spmm_backward),
):
    _op = getattr(torch.ops.sddmm, _name).default
    _library.impl(_name, _implementation, "CompositeExplicitAutograd")
    _library.impl(_name, gradients.autograd_kernel(_op, _backward), "Autograd")
    torch.library.register_fake(f"sddmm::{_name}", _fake, lib=_library)
    for _device, _key in autocast.DEVICES.items():
        _library.impl(_name, autocast.autocast_kernel(_op, _device), _key)
