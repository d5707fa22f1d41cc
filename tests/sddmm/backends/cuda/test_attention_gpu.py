"""The kernels of sparse attention on a GPU: right on every kind of pattern, and the same bits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import sddmm
from gemm_core.runtime.device import Device, device
from sddmm.attention import attention_problem
from sddmm.backends.base import AttentionGradients, AttentionOperands
from sddmm.backends.cuda.attention import AttentionExecutor
from sddmm.backends.cuda.kernels.registry import ATTENTION_KERNELS
from sddmm.backends.cuda.planner import Planner
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import (
    assert_attention_close,
    assert_attention_gradients_close,
    random_pattern,
)
from tests.sddmm.backends.cuda.test_compile import Compiler, compiler, own_cache
from tests.sddmm.backends.cuda.test_compile_attention import compile_size
from tests.sddmm.patterns import one_row, skewed, uniform, unsorted

__all__ = ["compiler", "own_cache"]

pytestmark = pytest.mark.gpu


def one_column() -> SparsePattern:
    rows = torch.arange(300_000, device="cuda")
    return SparsePattern.from_coo(rows, torch.full_like(rows, 70), (300_000, 2000))


def window() -> SparsePattern:
    """A window about the diagonal, with rows and columns that are full: a mask of tiles."""
    rows, cols = torch.arange(3000, device="cuda")[:, None], torch.arange(3100, device="cuda")
    return SparsePattern.from_torch(((rows - cols).abs() <= 200) | (cols < 5) | (rows < 5))


PATTERNS = [uniform, unsorted, one_row, one_column, skewed, window]
# d, dv, the dtype, heads, and the elements between rows of one head.
SIZES: list[tuple[int, int, torch.dtype, int | None, int]] = [
    (64, 64, torch.float16, None, 0), (64, 64, torch.float16, 4, 0), (20, 13, torch.bfloat16, 2, 1),
    (128, 64, torch.bfloat16, None, 0), (33, 50, torch.float32, 2, 0),
    (16, 16, torch.float16, 8, 0), (256, 256, torch.float32, None, 0),
    (0, 8, torch.float32, None, 0),
    (300, 512, torch.float16, None, 4), (8, 0, torch.float16, None, 0),
]  # fmt: skip
# What `compile_size` calls the tile kernels of half types.
TILE_KERNELS = ["tile", "tile_rows", "tile_columns"]


def operands(
    pattern: SparsePattern, d: int, dv: int, dtype: torch.dtype, heads: int | None, gap: int = 0
) -> list[Tensor]:
    """q, k and v whose heads are interleaved."""
    torch.manual_seed(d)
    m, n = pattern.shape
    inputs = []
    for count, size in ((m, d), (n, d), (n, dv)):
        x = torch.randn(count, heads or 1, size + gap, device="cuda").to(dtype)[..., :size]
        inputs.append((x[:, 0] if heads is None else x.transpose(0, 1)).requires_grad_())
    return inputs


def results(pattern: SparsePattern, inputs: list[Tensor], **options: Any) -> list[Tensor]:
    """The result, its logarithms, and the gradients of fixed products with both."""
    out, lse = sddmm.sparse_attention(pattern, *inputs[:3], return_lse=True, **options)
    generator = torch.Generator("cuda").manual_seed(3)
    upstream = [
        torch.randn(x.shape, dtype=x.dtype, device="cuda", generator=generator) for x in (out, lse)
    ]
    return [out, lse, *upstream, *torch.autograd.grad((out, lse), inputs, upstream)]


def same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(
        torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))
        for x, y in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("make", PATTERNS)
@pytest.mark.parametrize(("d", "dv", "dtype", "heads", "gap"), SIZES)
def test_results_and_gradients_are_right(
    make: Callable[[], SparsePattern], d: int, dv: int, dtype: torch.dtype, heads: int, gap: int
) -> None:
    pattern = make()
    inputs = operands(pattern, d, dv, dtype, heads, gap)
    out, lse, grad, grad_lse, *gradients = results(pattern, inputs)
    assert_attention_close(out, pattern, *inputs, lse=lse)
    assert_attention_gradients_close(gradients, pattern, *inputs, grad, grad_lse=grad_lse)


@pytest.mark.parametrize("name", ATTENTION_KERNELS)
@pytest.mark.parametrize("make", PATTERNS)
@pytest.mark.parametrize(("d", "dv"), [(64, 64), (128, 20)])
def test_every_kernel_is_right_on_every_pattern(
    name: str, make: Callable[[], SparsePattern], d: int, dv: int
) -> None:
    """Also where the planner would not choose it."""
    pattern = make()
    dtype = ATTENTION_KERNELS[name].dtypes[0]
    q, k, v = (x.detach() for x in operands(pattern, d, dv, dtype, 2))
    inputs = AttentionOperands(q, k, v, None, d**-0.5)
    problem = attention_problem(pattern, inputs)
    planner = Planner(ATTENTION_KERNELS, AttentionExecutor)
    prepared = planner.prepare(pattern, problem, device(0), name)
    out = torch.full((2, len(q[0]), dv), torch.nan, device="cuda", dtype=dtype)
    lse = torch.full((2, len(q[0])), torch.nan, device="cuda")
    new = (torch.full(x.shape, torch.nan, device="cuda", dtype=x.dtype) for x in (q, k, v))
    gradients = AttentionGradients(*new, None)
    prepared.forward(inputs, out, lse)
    prepared.prepare_backward()
    grad = torch.randn_like(out)
    prepared.backward(inputs, out, lse, grad, None, gradients)
    assert_attention_close(out, pattern, q, k, v, lse=lse)
    assert_attention_gradients_close(gradients, pattern, q, k, v, grad)


@pytest.mark.parametrize("make", [unsorted, skewed, window])
@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_bias_and_dropout(
    make: Callable[[], SparsePattern], by_head: bool, dtype: torch.dtype
) -> None:
    pattern = make()
    inputs = operands(pattern, 64, 64, dtype, 3)
    shape = (3, pattern.nnz) if by_head else (pattern.nnz,)
    bias = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
    generator = torch.Generator("cuda").manual_seed(1)
    options: dict[str, Any] = {"bias": bias, "dropout_p": 0.3}
    out, lse, grad, grad_lse, *gradients = results(
        pattern, [*inputs, bias], generator=generator, **options
    )
    generator.manual_seed(1)
    options["seed"] = torch.randint(2**63 - 1, (1,), generator=generator, device="cuda")
    assert_attention_close(out, pattern, *inputs, lse=lse, **options)
    assert_attention_gradients_close(
        gradients, pattern, *inputs, grad, grad_lse=grad_lse, **options
    )


@pytest.mark.parametrize("make", PATTERNS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_hundred_runs_have_the_same_bits(
    make: Callable[[], SparsePattern], dtype: torch.dtype
) -> None:
    """On another stream too."""
    pattern = make()
    inputs = operands(pattern, 64, 64, dtype, 2)
    first = results(pattern, inputs)
    assert all(same_bits(results(pattern, inputs), first) for _ in range(99))
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        again = results(pattern, inputs)
    torch.cuda.synchronize()
    assert same_bits(again, first)


def test_a_step_is_captured_in_a_cuda_graph() -> None:
    pattern = skewed()
    inputs = operands(pattern, 64, 64, torch.float16, 4)
    upstream = torch.randn(4, 5000, 64, device="cuda").half()

    def step() -> list[Tensor]:
        out = sddmm.sparse_attention(pattern, *inputs)
        return [out, *torch.autograd.grad(out, inputs, upstream)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for x in inputs:
            x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert same_bits(captured, step())


@pytest.mark.parametrize("d", [64, 256])
def test_a_step_takes_little_memory_beside_its_results(d: int) -> None:
    """At most 64 MB; skewed, so that many rows and columns are cut."""
    generator = torch.Generator("cuda").manual_seed(0)
    rows, cols = (torch.rand(2, 8_000_000, device="cuda", generator=generator) ** 3 * 1e5).long()
    pattern = SparsePattern.from_coo(rows, cols, (100_000, 100_000))
    inputs = operands(pattern, d, d, torch.float16, 4)
    out = sddmm.sparse_attention(pattern, *inputs)
    grad = torch.randn_like(out)
    torch.autograd.grad(out, inputs, grad)  # prepares
    del out
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = sddmm.sparse_attention(pattern, *inputs)
    gradients = torch.autograd.grad(out, inputs, grad)
    lse_bytes = 4 * out.shape[0] * out.shape[1]
    kept = sum(x.numel() * x.element_size() for x in (out, *gradients)) + lse_bytes
    assert torch.cuda.max_memory_allocated() - before - kept <= 64 * 2**20


def test_offsets_past_32_bits() -> None:
    """The last of 8 heads begins past 2^31 elements."""
    size, heads = 4_800_000, 8
    pattern = random_pattern(size, size, 400_000, layout="coo", device="cuda")
    whole = torch.randn(3, heads, size, 64, device="cuda", dtype=torch.float16)
    assert whole[0, :-1].numel() > 2**31
    inputs = [x.requires_grad_() for x in whole]
    out, lse, grad, grad_lse, *gradients = results(pattern, inputs)
    last = [x[-1].detach() for x in inputs]
    assert_attention_close(out[-1], pattern, *last, lse=lse[-1])
    assert_attention_gradients_close(
        [x[-1] for x in gradients], pattern, *last, grad[-1], grad_lse=grad_lse[-1]
    )


@pytest.mark.parametrize(("d", "dv", "dtype", "heads", "gap"), SIZES)
def test_every_size_compiles_without_spilling(
    d: int, dv: int, dtype: torch.dtype, heads: int, gap: int,
    compiler: Callable[[Device], Compiler],
) -> None:  # fmt: skip
    here = device(0)
    made = compiler(here)
    for step in (16, dtype.itemsize):
        if (d * dtype.itemsize | dv * dtype.itemsize) % step == 0:
            kernels = ["forward", "rows", "columns"]
            if max(d, dv) <= 128:
                kernels += ["tile"] if dtype == torch.float32 else TILE_KERNELS
            blocks = (64, 128) if max(d, dv) <= 64 else (64,)
            compile_size((d, dv, dtype), step, here, kernels, (*product(blocks, (False, True)),))
    for cubins in made.cubins.values():
        for cubin in cubins:
            assert cubin.resources.spill_bytes == 0
