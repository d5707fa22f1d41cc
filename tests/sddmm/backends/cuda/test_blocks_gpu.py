"""The block kernels on a GPU against float64: sizes, heads, repeats, streams, graphs, gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sddmm
from sddmm.backends.cuda.kernels.block import BlockKernel
from sddmm.backends.cuda.kernels.registry import BLOCK_KERNELS
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import assert_close, assert_spmm_close

pytestmark = pytest.mark.gpu

EVERY_CASE = [
    pytest.param(kernel, dtype, id=f"{name}-{str(dtype)[6:]}")
    for name, kernel in BLOCK_KERNELS.items()
    for dtype in kernel.dtypes
]
every_case = pytest.mark.parametrize(("kernel", "dtype"), EVERY_CASE)


def random_blocks(
    blocksize: tuple[int, int],
    down: int = 9,
    across: int = 11,
    index_dtype: torch.dtype | None = None,
) -> SparsePattern:
    mask = torch.rand(down, across, device="cuda") < 0.4
    crow = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0)).to(index_dtype or torch.int32)
    col = mask.nonzero()[:, 1].to(crow.dtype).contiguous()
    return SparsePattern.from_bsr(
        crow, col, blocksize, (down * blocksize[0], across * blocksize[1])
    )


def operands(
    pattern: SparsePattern, k: int, dtype: torch.dtype, heads: int | None = None
) -> tuple[Tensor, Tensor]:
    lead = () if heads is None else (heads,)
    a, b_t = (torch.randn(*lead, rows, k, device="cuda").to(dtype) for rows in pattern.shape)
    return a, b_t.mT


@every_case
@pytest.mark.parametrize("blocksize", [(64, 64), (16, 16), (96, 40), (3, 5), (200, 1)])
def test_every_size_and_alignment(
    kernel: BlockKernel, dtype: torch.dtype, blocksize: tuple[int, int]
) -> None:
    pattern = random_blocks(blocksize, index_dtype=torch.int64)
    for k, heads, out_dtype in ((0, None, dtype), (33, 2, torch.float32), (64, None, dtype),
                                (100, None, dtype), (256, 3, torch.float64)):  # fmt: skip
        a, b = operands(pattern, k, dtype, heads)
        plan = sddmm.plan(
            pattern, k=k, dtype=dtype, heads=heads, out_dtype=out_dtype, kernel=kernel.name
        )
        out = torch.full(plan.problem.values_shape(), torch.nan, dtype=out_dtype, device="cuda")
        assert_close(plan.run(a, b, out=out), pattern, a, b)


@every_case
def test_values_of_s_an_odd_address_and_the_same_bits(
    kernel: BlockKernel, dtype: torch.dtype
) -> None:
    pattern = random_blocks((32, 48))
    S = pattern.to_torch(torch.randn(pattern.nnz, device="cuda").to(dtype))
    a, b = operands(pattern, 72, dtype)
    plan = sddmm.plan(S, k=72, dtype=dtype, kernel=kernel.name, alpha=0.5)
    values = plan.run(a, b)
    assert_close(values, S, a, b, alpha=0.5)
    memory = torch.full((pattern.nnz + 2,), 7, dtype=dtype, device="cuda")
    assert torch.equal(plan.run(a, b, out=memory[1:-1]), values)
    assert memory[[0, -1]].tolist() == [7, 7]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_tensor_in_and_out_with_gradients(dtype: torch.dtype) -> None:
    pattern = random_blocks((16, 32))
    blocks = torch.randn(pattern.nnz, device="cuda").to(dtype).requires_grad_()
    a, b = (x.detach().requires_grad_() for x in operands(pattern, 40, dtype))
    S = pattern.to_torch(blocks)
    result = sddmm.sddmm(S, a, b)
    assert result.layout == torch.sparse_bsr
    assert_close(result.values().reshape(-1), S.detach(), a.detach(), b.detach())
    upstream = torch.randn_like(result.values())
    got = torch.autograd.grad((result.values() * upstream).sum(), (a, b, blocks))
    rows, cols = pattern.row_ids.long(), pattern.col_ids.long()
    exact = [x.detach().double().requires_grad_() for x in (a, b, blocks)]
    by_hand = (exact[0] @ exact[1])[rows, cols] * exact[2] * upstream.reshape(-1).double()
    expected = torch.autograd.grad(by_hand.sum(), exact)
    for x, y in zip(got, expected, strict=True):
        largest = float(y.abs().max())
        roundoff = 8 * torch.finfo(dtype).eps
        assert float((x.double() - y).abs().max()) <= max(roundoff, 1e-6) * largest


@pytest.mark.parametrize("blocksize", [(16, 16), (64, 64), (32, 48), (16, 24)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_products_and_their_gradients(blocksize: tuple[int, int], dtype: torch.dtype) -> None:
    """Two heads, with S and with its transpose, 20 times with the same bits."""
    pattern = random_blocks(blocksize)
    for transpose, rows in ((False, pattern.shape[1]), (True, pattern.shape[0])):
        values = torch.randn(2, pattern.nnz, device="cuda").to(dtype).requires_grad_()
        dense = torch.randn(2, rows, 72, device="cuda").to(dtype).requires_grad_()
        runs = []
        for _ in range(20):
            out = sddmm.spmm(pattern, dense, values=values, transpose=transpose, alpha=0.5)
            runs.append((out, *torch.autograd.grad(out.square().sum(), (dense, values))))
        assert_spmm_close(
            runs[0][0].detach(), pattern, dense.detach(), values=values.detach(),
            transpose=transpose, alpha=0.5,
        )  # fmt: skip
        upstream = 2 * runs[0][0].detach()
        assert_spmm_close(
            runs[0][1], pattern, upstream, values=values.detach(), transpose=not transpose,
            alpha=0.5,
        )  # fmt: skip
        assert all(torch.equal(x, y) for run in runs[1:] for x, y in zip(runs[0], run, strict=True))


def test_a_graph_and_another_stream() -> None:
    pattern = random_blocks((64, 64))
    a, b = operands(pattern, 64, torch.float16)
    plan = sddmm.plan(pattern, k=64, dtype=torch.float16)
    expected = plan.run(a, b)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(expected)
    with torch.cuda.stream(stream):
        plan.run(a, b, out=out)
        with torch.cuda.graph(graph, stream=stream):
            plan.run(a, b, out=out)
        out.fill_(torch.nan)
        graph.replay()
    stream.synchronize()
    assert torch.equal(out, expected)


def test_indices_that_are_wrong_are_refused_in_words() -> None:
    pattern = random_blocks((16, 16))
    pattern.col_indices[3] = 11
    with pytest.raises(ValueError, match=r"col_indices\[3\] is 11; valid .* in blocks of 16x16"):
        sddmm.sddmm(pattern, *operands(pattern, 64, torch.float16))
