"""Samples at a torch CSR tensor on the CPU, of which nothing is kept between calls.

A backend that checks the indices while it computes (`CsrSampler`) does so in less time than it
takes to compare them with a copy. So every call is one look-up by the metadata of the tensors, and
one run: no pattern, no plan.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sddmm.backends.base import CsrSampler
from sddmm.backends.selection import CHOICES, select_backend
from sddmm.operands import check_values, problem_of, remember
from sddmm.ops.traced import add_scaled, sum_dtype
from sddmm.sparse.torch_tensors import pattern_and_values

_CSR = torch.sparse_csr

# What computes calls with this metadata; None for a backend that needs a pattern.
_SAMPLERS: dict[tuple[object, ...], CsrSampler | None] = {}
CHOICES.append(_SAMPLERS.clear)


def can_sample_csr(S: Any, a: Tensor, b: Tensor) -> bool:
    """Whether S is a CSR tensor on the CPU, where a is, as b is, and autograd asks for nothing.

    A tensor of a subclass may have no memory to read, so it is not sampled here.
    """
    if not (type(S) is Tensor and S.layout == _CSR and S.is_cpu and b.is_cpu):
        return False
    if a.requires_grad or b.requires_grad or S.requires_grad:
        return S.grad_fn is None and not torch.is_grad_enabled()
    return True


def sample_csr(
    S: Tensor,
    a: Tensor,
    b: Tensor,
    alpha: float,
    scale: bool,
    out_dtype: torch.dtype | None,
    precision: str,
) -> Tensor | None:
    """What `sddmm.sddmm` returns for these, which `can_sample_csr`; None if the backend needs a
    pattern."""
    crow, cols = S.crow_indices(), S.col_indices()
    values = S.values() if scale else None
    sampler = _sampler(S, crow, cols, a, b, values, out_dtype, precision, scale)
    if sampler is None:
        return None
    return _wrapped(S, crow, cols, sampler.sample(crow, cols, (a, b, values, alpha)))


def sample_and_add_csr(S: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor | None:
    """What `sddmm.sampled_addmm` returns for these, which `can_sample_csr`; None if the backend
    needs a pattern."""
    crow, cols, values = S.crow_indices(), S.col_indices(), S.values()
    checked, out_dtype = values if beta != 0 else None, sum_dtype(a.dtype, beta)
    sampler = _sampler(S, crow, cols, a, b, checked, out_dtype)
    if sampler is None:
        return None
    new = add_scaled(sampler.sample(crow, cols, (a, b, None, alpha)), beta, values)
    return _wrapped(S, crow, cols, new.to(a.dtype))


def _wrapped(S: Tensor, crow: Tensor, cols: Tensor, new: Tensor) -> Tensor:
    """New values like S; with heads bare."""
    if new.dim() != 1:
        return new
    return torch.sparse_csr_tensor(
        crow, cols, new, S.shape, device=new.device, check_invariants=False
    )


def _sampler(
    S: Tensor,
    crow: Tensor,
    cols: Tensor,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    out_dtype: torch.dtype | None,
    precision: str = "ieee",
    scaled: bool = False,
) -> CsrSampler | None:
    """What computes such calls; raises if a, b and values, unless None, do not fit S. scaled:
    whether the values multiply the samples."""
    key = (
        S.shape, crow.numel(), cols.numel(), crow.dtype, cols.dtype, a.shape, b.shape, a.dtype,
        b.dtype, a.layout, b.layout, out_dtype, precision, scaled,
        None if values is None else (values.shape, values.dtype),
    )  # fmt: skip
    try:
        return _SAMPLERS[key]
    except KeyError:
        sampler = _find_sampler(S, a, b, values, out_dtype, precision, scaled)
    return remember(_SAMPLERS, key, sampler)


def _find_sampler(
    S: Tensor,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    out_dtype: torch.dtype | None,
    precision: str,
    scaled: bool,
) -> CsrSampler | None:
    pattern = pattern_and_values(S, reads_values=False)[0]
    problem = problem_of(pattern, a, b, out_dtype, precision, scaled)
    if values is not None:
        check_values(values, problem)
    backend = select_backend(problem, None)[0]
    # A later call may find a better plan; and without heads no product checks the indices.
    if backend.plans_by_calls or problem.heads == 0:
        return None
    runs = backend.single_runs(problem, True, False)
    return runs if isinstance(runs, CsrSampler) else None
