"""Products by tiles of weights on a GPU: within the bound, and the same bits every time."""

from __future__ import annotations

import pytest
import torch

from gemm_core.runtime.device import device
from sddmm.backends.cuda.kernels.spmm_tile.host import SPMM_TILES, SpmmTile
from sddmm.backends.cuda.planner import Planner
from sddmm.backends.cuda.products import ProductExecutor
from sddmm.backends.reference import reference_product
from sddmm.ops.base import rounded_bound, tolerance
from sddmm.products import product_problem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import mismatches

pytestmark = pytest.mark.gpu
KERNELS = {kernel.name: kernel for kernel in SPMM_TILES}


def window(size: int, width: int, global_tokens: int) -> SparsePattern:
    """A sliding window, with rows and columns that are whole."""
    index = torch.arange(size, device="cuda")
    mask = (index[:, None] - index).abs() <= width
    mask[:global_tokens] = True
    mask[:, :global_tokens] = True
    rows, cols = mask.nonzero().unbind(1)
    return SparsePattern.from_coo(rows, cols, (size, size)).to_csr()


def kinds_of_weights(kernel: SpmmTile) -> list[tuple[str, bool, bool]]:
    """Its name, whether values are float32, and whether they are multiplied by factors."""
    if not kernel.float_weights:
        return [(kernel.name, False, False)]
    if kernel.dtypes == (torch.float32,):
        return [(kernel.name, True, False), (kernel.name, True, True)]
    return [(kernel.name, False, True), (kernel.name, True, False), (kernel.name, True, True)]


@pytest.mark.parametrize(
    ("name", "float_values", "has_factors"),
    [kind for kernel in SPMM_TILES for kind in kinds_of_weights(kernel)],
)
@pytest.mark.parametrize("transpose", [False, True])
def test_a_hundred_repeats_have_the_same_bits(
    name: str, float_values: bool, has_factors: bool, transpose: bool
) -> None:
    """Rows that several blocks share are added in a fixed order."""
    pattern = window(3000, 100, 33)
    pattern = pattern.T if transpose else pattern
    dtype = KERNELS[name].dtypes[-1]
    dense = torch.randn(3, 3000, 72, device="cuda").to(dtype)
    dense[0, 500, 3] = torch.inf
    values = torch.randn(3, pattern.nnz, device="cuda").to(torch.float32 if float_values else dtype)
    factors = torch.randn(pattern.nnz, device="cuda").to(dtype) if has_factors else None
    problem = product_problem(pattern, values, dense, factors, False, torch.float32)
    executor = Planner(KERNELS, ProductExecutor).prepare(pattern, problem, device(0), name)
    first = torch.empty(problem.out_shape(), dtype=torch.float32, device="cuda")
    executor(values, factors, dense, 0.5, first)
    again = torch.empty_like(first)
    for _ in range(100):
        executor(values, factors, dense, 0.5, again.fill_(7))
        assert torch.equal(first.view(torch.int32), again.view(torch.int32))
    truth = reference_product(pattern, values, dense, factors, alpha=0.5)
    finite = dense.nan_to_num(posinf=0)
    size = reference_product(
        pattern, values.abs(), finite.abs(), None if factors is None else factors.abs(), alpha=0.5
    )
    slack = tolerance(torch.float32, pattern.row_lengths.longest) * size
    assert not bool(mismatches(first, truth, rounded_bound(slack, truth, first.dtype)).any())
