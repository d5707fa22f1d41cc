"""Operands whose last rows stand in another tensor give the same bits as those in one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gemm_core.runtime.device import device as device_of
from sddmm.attention import attention, attention_backward, attention_problem
from sddmm.backends.base import AttentionOperands
from sddmm.backends.cuda.kernels.registry import SPMM_KERNELS
from sddmm.backends.cuda.planner import Planner
from sddmm.backends.cuda.products import ProductExecutor
from sddmm.products import product, product_problem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import random_pattern
from tests.sddmm.backends.cuda.on_either import DEVICES, FEW, kernels_of
from tests.sddmm.memory import at_a_cliff


def two_parts(x: Tensor, first: int, gap: int) -> tuple[Tensor, Tensor]:
    """The first rows of ([h,] rows, k), and the others `gap` elements farther apart; on a CPU each
    at the edge of memory."""
    wide = torch.cat([x[..., first:, :], x.new_zeros((*x.shape[:-2], len(x) - first, gap))], -1)
    parts = x[..., :first, :].clone(), wide[..., : x.shape[-1]]
    if x.is_cuda:
        return parts
    return at_a_cliff(parts[0]), at_a_cliff(parts[1])


def random(*shape: int, dtype: torch.dtype, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("first", [1, 60, 94])
@pytest.mark.parametrize(
    ("dtype", "k", "gap", "nnz"),
    [(torch.float16, 64, 8, 2000), (torch.bfloat16, 300, 0, 1400), (torch.float32, 33, 1, 2000),
     (torch.float64, 8, 2, 2000), (torch.float16, 64, 8, 700), (torch.float32, 33, 1, 700)],
)  # fmt: skip
def test_products(device: str, first: int, dtype: torch.dtype, k: int, gap: int, nnz: int) -> None:
    """Long and short rows."""
    pattern = random_pattern(80, 95, nnz, device=device)
    values = random(nnz, dtype=dtype, device=device)
    dense = random(95, k, dtype=dtype, device=device)
    own, beyond = two_parts(dense, first, gap)
    with kernels_of(device) as launches:
        one = product(pattern, values, dense, alpha=0.5)
        two = product(pattern, values, own, alpha=0.5, beyond=beyond)
    assert torch.equal(one, two)
    assert device == "cuda" or ("spmm_rows" if nnz == 700 else "spmm_gather") in launches


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SPMM_KERNELS)
def test_every_kernel_of_products(device: str, name: str) -> None:
    """Those that read one tensor get one."""
    pattern = random_pattern(80, 95, 3000, device=device)
    dtype = SPMM_KERNELS[name].dtypes[0]
    values, dense = (random(*x, dtype=dtype, device=device) for x in ((3000,), (95, 64)))
    own, beyond = two_parts(dense, 60, 0)
    problem = product_problem(pattern, values, dense, None, False, torch.float32)
    with kernels_of(device):
        at = FEW if device == "cpu" else device_of(0)
        if SPMM_KERNELS[name].refuses(problem, at) is not None:
            values = values.float()  # tiles that read float weights alone
            problem = product_problem(pattern, values, dense, None, False, torch.float32)
        run = Planner(SPMM_KERNELS, ProductExecutor).prepare(pattern, problem, at, name)
        one, two = (torch.full((80, 64), torch.nan, device=device) for _ in range(2))
        run(values, None, dense, 1.0, one)
        run(values, None, own, 1.0, two, beyond)
    assert torch.equal(one, two)


def step(
    pattern: SparsePattern, operands: AttentionOperands, grads: tuple[Tensor, Tensor]
) -> list[Tensor]:
    """The result of an attention, its logarithms and all gradients."""
    problem = attention_problem(pattern, operands)
    out, lse = attention(pattern, problem, operands)
    needs = True, True, True, operands.bias is not None
    gradients = attention_backward(pattern, problem, operands, out, lse, *grads, needs)
    return [out, lse, *(x for x in gradients if x is not None)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("first", [1, 60, 94])
@pytest.mark.parametrize(
    ("dtype", "d", "dv", "gap", "has_bias"),
    [(torch.float16, 64, 64, 8, False), (torch.bfloat16, 20, 12, 4, True),
     (torch.float32, 132, 130, 1, False)],
)  # fmt: skip
@pytest.mark.parametrize("nnz", [600, 6000])
def test_attention_and_its_gradients(
    device: str, first: int, dtype: torch.dtype, d: int, dv: int, gap: int, has_bias: bool, nnz: int
) -> None:
    """Weights of few nonzeros are stored between the passes; both passes gather many."""
    pattern = random_pattern(80, 95, nnz, device=device)
    q, k, v = (random(*size, dtype=dtype, device=device) for size in ((80, d), (95, d), (95, dv)))
    bias = random(nnz, dtype=dtype, device=device) if has_bias else None
    grads = (
        random(80, dv, dtype=dtype, device=device),
        random(80, dtype=torch.float32, device=device),
    )
    whole = AttentionOperands(q, k, v, bias, 0.3)
    (own_k, last_k), (own_v, last_v) = (two_parts(x, first, gap) for x in (k, v))
    apart = whole._replace(k=own_k, v=own_v, beyond=(last_k, last_v))
    with kernels_of(device):
        expected, got = step(pattern, whole, grads), step(pattern, apart, grads)
    for one, other in zip(expected, got, strict=True):
        assert one.shape == other.shape
        assert torch.equal(one, other)


@pytest.mark.parametrize("device", DEVICES)
def test_heads_and_first_parts_without_rows(device: str) -> None:
    """What the kernels do not read in two parts they get in one."""
    pattern = random_pattern(80, 95, 600, device=device)
    values, dense = (random(*x, dtype=torch.float16, device=device) for x in ((600,), (3, 95, 64)))
    q, k, v = (random(3, n, 64, dtype=torch.float16, device=device) for n in (80, 95, 95))
    grads = (
        random(3, 80, 64, dtype=torch.float16, device=device),
        random(3, 80, dtype=torch.float32, device=device),
    )
    for first, heads in ((60, slice(None)), (0, 0)):
        x, own = dense[heads], AttentionOperands(q[heads], k[heads], v[heads], None, 0.3)
        apart = own._replace(
            k=own.k[..., :first, :], v=own.v[..., :first, :],
            beyond=(own.k[..., first:, :], own.v[..., first:, :]),
        )  # fmt: skip
        upstream = grads[0][heads], grads[1][heads]
        with kernels_of(device):
            one = product(pattern, values, x)
            two = product(pattern, values, x[..., :first, :], beyond=x[..., first:, :])
            expected, got = step(pattern, own, upstream), step(pattern, apart, upstream)
        assert torch.equal(one, two)
        assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
