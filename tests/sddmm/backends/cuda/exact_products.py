"""Products of small integers by one kernel, run on the CPU, which are exact in any order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from sddmm.backends.cuda.planner import Planner
from sddmm.backends.cuda.products import ProductExecutor
from sddmm.backends.cuda.spec import ProductKernel
from sddmm.backends.reference import reference_product
from sddmm.products import product_problem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, emulated_gpu
from tests.sddmm.memory import at_a_cliff


class Operands(NamedTuple):
    """The operands of alpha * W X, W's weights being values * factors."""

    values: Tensor
    dense: Tensor
    factors: Tensor | None = None


def run(
    kernel: ProductKernel,
    pattern: SparsePattern,
    operands: Operands,
    out_dtype: torch.dtype = torch.float32,
    alpha: float = 1.0,
    device: Device = H200,
) -> tuple[Tensor, list[str]]:
    """The product, all of whose tensors end where no more may be read; and what was launched."""
    values, dense, factors = (None if x is None else at_a_cliff(x) for x in operands)
    assert values is not None
    assert dense is not None
    problem = product_problem(pattern, values, dense, factors, False, out_dtype)
    out = at_a_cliff(torch.full(problem.out_shape(), 777.0, dtype=out_dtype))
    with emulated_gpu() as launches:
        planner = Planner({kernel.name: kernel}, ProductExecutor)
        executor = planner.prepare(pattern, problem, device, kernel.name)
        executor(values, factors, dense, alpha, out)
    return out, launches


def check(
    kernel: ProductKernel,
    pattern: SparsePattern,
    k: int,
    dtype: torch.dtype = torch.float16,
    *,
    values_dtype: torch.dtype | None = None,
    out_dtype: torch.dtype = torch.float32,
    heads: int | None = None,
    shared_values: bool = False,
    has_factors: bool = False,
    pad: int = 0,
) -> list[str]:
    """The product is exact, whatever the order of summation; returns what was launched.

    shared_values: heads have the same weights. pad: elements from row to row beyond k.
    """
    generator = torch.Generator().manual_seed(k)
    lead = () if heads is None else (heads,)

    def integers(*shape: int) -> Tensor:
        return torch.randint(-2, 3, shape, generator=generator)

    dense = integers(*lead, pattern.shape[1], k + pad).to(dtype)[..., :k]
    own_lead = () if shared_values else lead
    values = integers(*own_lead, pattern.nnz + pad).to(values_dtype or dtype)[..., : pattern.nnz]
    factors = integers(pattern.nnz).to(dtype) if has_factors else None
    operands = Operands(values, dense, factors)
    out, launches = run(kernel, pattern, operands, out_dtype, alpha=2.0)
    truth = reference_product(pattern, values, dense, factors, alpha=2.0)
    wrong = (out.double() != truth).nonzero()
    assert not len(wrong), f"{len(wrong)} of {out.numel()} wrong, first at {wrong[0].tolist()}"
    return launches
