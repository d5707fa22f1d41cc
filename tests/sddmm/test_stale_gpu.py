"""On a GPU no call is answered from what was prepared for other indices, or is not ready yet."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import sddmm
from sddmm.testing import random_pattern

pytestmark = pytest.mark.gpu

M, N, K = 300, 200, 64


@pytest.fixture
def operands() -> tuple[Tensor, Tensor]:
    a, b_t = (torch.randn(size, K, device="cuda", dtype=torch.float16) for size in (M, N))
    return a, b_t.mT


def check(values: Tensor, rows: Tensor, cols: Tensor, operands: tuple[Tensor, Tensor]) -> None:
    a, b = operands
    expected = (a.double() @ b.double())[rows.long(), cols.long()]
    torch.testing.assert_close(values.double(), expected, rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_a_sparse_tensor_whose_original_indices_change(
    layout: str, index_dtype: torch.dtype, operands: tuple[Tensor, Tensor]
) -> None:
    first = random_pattern(M, N, 5000, layout=layout, index_dtype=index_dtype, device="cuda")
    crow, cols, rows = first.major_indices, first.col_indices.clone(), first.row_ids
    indices = torch.stack([rows, cols])
    values = torch.ones(5000, device="cuda", dtype=torch.float16)
    if layout == "csr":
        S, original = torch.sparse_csr_tensor(crow, cols, values, (M, N)), cols
    else:
        S = torch.sparse_coo_tensor(indices, values, (M, N), is_coalesced=True)
        original = S._indices()[1] if S._indices().dtype != indices.dtype else indices[1]
    for shift in (0, 1, 0, 7):
        original.copy_((first.col_indices + shift) % N)
        check(sddmm.sddmm(S, *operands).values(), rows, original, operands)
    original[17] = N
    with pytest.raises(ValueError, match=rf"col_indices\[17\] is {N}"):
        sddmm.sddmm(S, *operands)


def test_a_buffer_that_is_refilled_through_dlpack(operands: tuple[Tensor, Tensor]) -> None:
    cupy = pytest.importorskip("cupy")
    buffers = [cupy.empty(5000, dtype=cupy.int64) for _ in range(2)]
    for seed in range(6):
        S = random_pattern(M, N, 5000, layout="coo", seed=seed, device="cuda")
        for buffer, part in zip(buffers, (S.row_ids, S.col_indices), strict=True):
            buffer[:] = cupy.from_dlpack(part)
        cupy.cuda.Device().synchronize()
        rows, cols = (torch.from_dlpack(buffer) for buffer in buffers)
        check(sddmm.sddmm((rows, cols, (M, N)), *operands), S.row_ids, S.col_indices, operands)
        pattern = sddmm.SparsePattern.from_coo(rows, cols, (M, N))
        check(sddmm.sddmm(pattern, *operands), S.row_ids, S.col_indices, operands)


def test_a_copy_reads_its_own_memory(operands: tuple[Tensor, Tensor]) -> None:
    S = random_pattern(M, N, 5000, device="cuda")
    plan = sddmm.plan(S, k=K, dtype=torch.float16)
    rows, cols = S.row_ids.clone(), S.col_indices.clone()
    plan.run(*operands)
    twin = copy.deepcopy(plan)
    S.col_indices.zero_()
    check(twin.run(*operands), rows, cols, operands)
    check(plan.run(*operands), rows, torch.zeros_like(cols), operands)


@pytest.mark.parametrize("kernel", [None, "row_gather", "windows", "tile_mma_64x64x32", "hybrid"])
def test_what_one_stream_prepared_serves_another_at_once(
    kernel: str | None, operands: tuple[Tensor, Tensor]
) -> None:
    streams = [torch.cuda.Stream() for _ in range(2)]
    big = random_pattern(3000, 3000, 900_000, layout="coo", shuffled=True, device="cuda")
    a, b = (torch.randn(3000, K, device="cuda", dtype=torch.float16) for _ in range(2))
    torch.cuda.synchronize()
    results: list[Any] = []
    plan = None
    for stream in streams:
        with torch.cuda.stream(stream):
            plan = plan or sddmm.plan(big, k=K, dtype=a.dtype, kernel=kernel)
            results.append(plan.run(a, b.mT))
    torch.cuda.synchronize()
    assert torch.equal(*results)
    check(results[1], big.row_ids, big.col_indices, (a, b.mT))
