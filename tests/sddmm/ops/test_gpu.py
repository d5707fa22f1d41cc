"""The operator on CUDA tensors: values, gradients, containers, refusals."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

import sddmm
from sddmm.testing import assert_close, random_pattern

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("heads", [None, 3])
def test_values(dtype: torch.dtype, index_dtype: torch.dtype, heads: int | None) -> None:
    S = random_pattern(
        70, 50, 600, layout="coo", shuffled=True, device="cuda", index_dtype=index_dtype
    )
    lead = () if heads is None else (heads,)
    a = torch.randn(*lead, 70, 33, device="cuda").to(dtype)
    b = torch.randn(*lead, 50, 33, device="cuda").to(dtype).mT
    values = sddmm.sddmm(S, a, b)
    assert values.is_cuda
    assert_close(values, S, a, b)


@pytest.mark.parametrize(("m", "k", "n", "nnz"), [(0, 4, 5, 0), (5, 0, 6, 7), (5, 4, 6, 0)])
def test_empty_problems(m: int, k: int, n: int, nnz: int) -> None:
    S = random_pattern(m, n, nnz, device="cuda")
    values = sddmm.sddmm(S, torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda"))
    assert values.shape == (nnz,)
    assert not values.any()


def test_a_first_call_of_no_heads_has_no_values() -> None:
    S = random_pattern(17, 5, 9, layout="csr", device="cuda")
    matrix = S.to_torch(torch.ones(9, device="cuda"))
    a, b = torch.randn(0, 17, 30, device="cuda"), torch.randn(0, 30, 5, device="cuda")
    assert sddmm.sddmm(matrix, a, b).shape == (0, 9)


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_containers_and_gradients(layout: str) -> None:
    pattern = random_pattern(6, 5, 14, layout=layout, device="cuda")
    a = torch.randn(6, 3, dtype=torch.float64, device="cuda", requires_grad=True)
    b = torch.randn(3, 5, dtype=torch.float64, device="cuda", requires_grad=True)
    v = torch.randn(14, dtype=torch.float64, device="cuda", requires_grad=True)

    def values(a: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if layout == "csr":
            S = torch.sparse_csr_tensor(pattern.major_indices, pattern.col_indices, v, (6, 5))
        else:
            indices = torch.stack([pattern.row_ids, pattern.col_indices])
            S = torch.sparse_coo_tensor(indices, v, (6, 5), is_coalesced=True)
        result: torch.Tensor = sddmm.sddmm(S, a, b).values()
        return result

    expected = (a @ b)[pattern.row_ids, pattern.col_indices] * v
    torch.testing.assert_close(values(a, b, v), expected)
    assert gradcheck(values, (a, b, v))


def test_operands_and_pattern_on_different_devices_are_refused() -> None:
    S = random_pattern(6, 5, 14, device="cuda")
    a, b = torch.randn(6, 3), torch.randn(3, 5)
    with pytest.raises(ValueError, match="a is on cpu and S on cuda:0"):
        sddmm.sddmm(S, a, b)
    with pytest.raises(ValueError, match="b is on cpu and S on cuda:0"):
        sddmm.sddmm(S, a.cuda(), b)


def test_indices_out_of_range_are_named() -> None:
    rows, cols = torch.tensor([0, 6], device="cuda"), torch.tensor([0, 1], device="cuda")
    with pytest.raises(ValueError, match=r"row_indices\[1\] is 6"):
        sddmm.sddmm((rows, cols, (6, 5)), torch.randn(6, 3).cuda(), torch.randn(3, 5).cuda())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_gradient_of_one_number_for_all_values_is_read_as_such(dtype: torch.dtype) -> None:
    """`sum` gives its backward a tensor of stride 0, whose memory holds one number."""
    pattern = random_pattern(60, 50, 900, device="cuda")
    a = torch.randn(60, 40, device="cuda").to(dtype).requires_grad_()
    b = torch.randn(40, 50, device="cuda").to(dtype).requires_grad_()
    sddmm.sddmm(pattern, a, b).sum().backward()
    mask = torch.zeros(60, 50, dtype=torch.float64, device="cuda")
    mask[pattern.row_ids, pattern.col_indices] = 1
    assert a.grad is not None
    assert b.grad is not None
    tolerance = {"rtol": 0.0, "atol": 0.02 if dtype == torch.float16 else 1e-4}
    torch.testing.assert_close(a.grad.double(), mask @ b.detach().double().mT, **tolerance)
    torch.testing.assert_close(b.grad.double(), a.detach().double().mT @ mask, **tolerance)


def test_a_call_after_the_first_is_captured() -> None:
    """Whether or not the plan for many runs was prepared before the capture."""
    for calls_before in (1, 2):
        S = random_pattern(300, 400, 9000, layout="coo", shuffled=True, device="cuda")
        a, b = torch.randn(300, 64, device="cuda"), torch.randn(64, 400, device="cuda")
        for _ in range(calls_before):
            sddmm.sddmm(S, a, b)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            values = sddmm.sddmm(S, a, b)
        a.copy_(torch.randn_like(a))
        graph.replay()
        torch.cuda.synchronize()
        assert_close(values, S, a, b)


def test_a_first_call_is_not_captured() -> None:
    S = random_pattern(300, 400, 9000, device="cuda")
    a, b = torch.randn(300, 64, device="cuda"), torch.randn(64, 400, device="cuda")
    with (
        pytest.raises(RuntimeError, match="call it once before the capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        sddmm.sddmm(S, a, b)
    assert_close(sddmm.sddmm(S, a, b), S, a, b)
