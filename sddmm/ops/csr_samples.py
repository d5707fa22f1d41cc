"""Samples at a torch CSR tensor on the CPU, of which nothing is kept between calls.

A backend that checks the indices while it computes (`CsrSampler`) does so in less time than it
takes to compare them with a copy. So every call is one look-up by the metadata of the tensors, and
one run: no pattern, no plan.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sddmm.backends.base import CHOICES, CsrSampler, select_backend
from sddmm.operands import check_values, problem_of
from sddmm.sparse.torch_tensors import pattern_and_values

_CSR = torch.sparse_csr

# What computes calls with this metadata; None for a backend that needs a pattern.
_SAMPLERS: dict[tuple[object, ...], CsrSampler | None] = {}
_MAX_SAMPLERS = 1024
CHOICES.append(_SAMPLERS.clear)


def can_sample_csr(S: Any, a: Tensor, b: Tensor) -> bool:
    """Whether S is a CSR tensor on the CPU, as its operands are, and autograd asks for nothing."""
    if not (isinstance(S, Tensor) and S.layout == _CSR and S.is_cpu and a.is_cpu and b.is_cpu):
        return False
    if a.requires_grad or b.requires_grad or S.requires_grad:
        return S.grad_fn is None and not torch.is_grad_enabled()
    return True


def sample_csr(
    S: Tensor,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    alpha: float,
    out_dtype: torch.dtype | None,
    precision: str,
    read_values: bool = True,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """S's crow_indices, its col_indices, and new values; None if the backend needs a pattern.

    S, a, b: such that `can_sample_csr`. values: S's, to be checked, or None. read_values: whether
    to multiply by them. Raises for operands that do not fit S and for indices out of range.
    """
    crow, cols = S.crow_indices(), S.col_indices()
    key = (
        S.shape, crow.numel(), cols.numel(), crow.dtype, cols.dtype, a.shape, b.shape, a.dtype,
        b.dtype, a.layout, b.layout, out_dtype, precision,
        None if values is None else (values.shape, values.dtype),
    )  # fmt: skip
    try:
        sampler = _SAMPLERS[key]
    except KeyError:
        sampler = _find_sampler(key, S, a, b, values, out_dtype, precision)
    if sampler is None:
        return None
    operands = a, b, values if read_values else None, alpha
    return crow, cols, sampler.sample(crow, cols, operands)


def _find_sampler(
    key: tuple[object, ...],
    S: Tensor,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    out_dtype: torch.dtype | None,
    precision: str,
) -> CsrSampler | None:
    """What computes such calls; raises if the operands do not fit S."""
    problem = problem_of(pattern_and_values(S, reads_values=False)[0], a, b, out_dtype, precision)
    if values is not None:
        check_values(values, problem)
    runs = select_backend(problem)[0].single_runs(problem, is_csr=True, is_kept=False)
    # Without heads nothing is computed with which indices could be checked.
    sampler = runs if isinstance(runs, CsrSampler) and problem.heads != 0 else None
    if len(_SAMPLERS) >= _MAX_SAMPLERS:
        _SAMPLERS.clear()
    _SAMPLERS[key] = sampler
    return sampler
