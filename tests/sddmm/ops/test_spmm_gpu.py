"""spmm on CUDA tensors: values, gradients, special numbers, containers, refusals."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import sddmm
from sddmm import SparsePattern
from sddmm.testing import assert_spmm_close, random_pattern

pytestmark = pytest.mark.gpu

M, N, D = 70, 50, 33


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("transpose", [False, True])
def test_values(
    dtype: torch.dtype, index_dtype: torch.dtype, heads: int | None, transpose: bool
) -> None:
    S = random_pattern(
        M, N, 600, layout="coo", shuffled=True, device="cuda", index_dtype=index_dtype
    )
    lead = () if heads is None else (heads,)
    values = randn(*lead, 600, dtype=dtype)
    dense = randn(*lead, M if transpose else N, D, dtype=dtype)
    options = {"values": values, "transpose": transpose, "alpha": 0.5}
    assert_spmm_close(sddmm.spmm(S, dense, **options), S, dense, **options)
    wide = sddmm.spmm(S, dense, out_dtype=torch.float32, **options)
    assert wide.dtype == torch.float32
    assert_spmm_close(wide, S, dense, **options)


@pytest.mark.parametrize(("m", "n", "d", "nnz"), [(0, 4, 5, 0), (5, 6, 0, 7), (5, 6, 4, 0)])
def test_empty_products(m: int, n: int, d: int, nnz: int) -> None:
    S = random_pattern(m, n, nnz, device="cuda")
    result = sddmm.spmm(S, randn(n, d), values=randn(nnz))
    assert result.shape == (m, d)
    assert not result.any()


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_containers_and_gradients(layout: str) -> None:
    pattern = random_pattern(6, 5, 14, layout=layout, device="cuda")
    v = randn(14, dtype=torch.float64).requires_grad_()
    x = randn(2, 5, 3, dtype=torch.float64).requires_grad_()

    def own(v: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = sddmm.spmm(pattern.to_torch(v), x)
        return result

    def given(v: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = sddmm.spmm(pattern, x, values=v)
        return result

    torch.testing.assert_close(own(v, x), pattern.to_torch(v).to_dense() @ x)
    assert gradcheck(own, (v, x))
    assert gradcheck(given, (v, x))
    assert gradgradcheck(given, (v, x))


def test_special_numbers_reach_exactly_the_rows_that_read_them() -> None:
    S = random_pattern(M, N, 600, layout="coo", shuffled=True, device="cuda")
    dense, values = randn(N, D), randn(600)
    dense[S.col_indices[3], 2] = torch.inf
    result = sddmm.spmm(S, dense, values=values)
    touched = torch.zeros_like(result, dtype=torch.bool)
    touched[S.row_ids[S.col_indices == S.col_indices[3]], 2] = True
    assert torch.equal(~result.isfinite(), touched)


def test_more_nonzeros_than_positions_add_up() -> None:
    S = SparsePattern.from_coo([1] * 64, [2] * 64, (9, 7)).cuda()
    dense, values = randn(7, 3), randn(64)
    assert_spmm_close(sddmm.spmm(S, dense, values=values), S, dense, values=values)


def test_operands_on_another_device_are_refused() -> None:
    S = random_pattern(6, 5, 14, device="cuda")
    with pytest.raises(ValueError, match="dense is on cpu and S on cuda:0"):
        sddmm.spmm(S, torch.randn(5, 3), values=randn(14))
    with pytest.raises(ValueError, match="values are on cpu and S on cuda:0"):
        sddmm.spmm(S, randn(5, 3), values=torch.randn(14))
