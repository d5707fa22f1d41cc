"""No call is answered from what was prepared for other indices, however these came to be there."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sddmm
from sddmm import SparsePattern
from sddmm.cache import CACHE
from sddmm.testing import random_pattern

M, N, K = 6, 5, 4
OLD = np.array([0, 1, 2, 3, 4, 5]), np.array([0, 1, 2, 3, 4, 0])
NEW = np.array([5, 4, 3, 2, 1, 0]), np.array([4, 4, 0, 1, 0, 3])


@pytest.fixture
def operands() -> tuple[Tensor, Tensor]:
    return torch.randn(M, K), torch.randn(K, N)


def check(values: Any, indices: tuple[Any, Any], operands: tuple[Tensor, Tensor]) -> None:
    a, b = operands
    rows, cols = (torch.as_tensor(x) for x in map(list, indices))
    torch.testing.assert_close(torch.as_tensor(values), (a @ b)[rows, cols])


def filled(buffer: Any, indices: np.ndarray) -> None:
    buffer[:] = indices.tobytes()


def from_buffer(buffer: bytearray) -> Tensor:
    return torch.frombuffer(buffer, dtype=torch.int64)


def from_dlpack(buffer: bytearray) -> Tensor:
    return torch.from_dlpack(np.frombuffer(buffer, dtype=np.int64))


def from_numpy(buffer: bytearray) -> Tensor:
    return torch.from_numpy(np.frombuffer(buffer, dtype=np.int64))


@pytest.mark.parametrize("view", [from_buffer, from_dlpack, from_numpy, np.frombuffer])
@pytest.mark.parametrize("kind", ["tuple", "pattern", "coo", "csr", "operator"])
def test_a_new_tensor_over_a_refilled_buffer_is_another_pattern(
    view: Callable[..., Any], kind: str, operands: tuple[Tensor, Tensor]
) -> None:
    a, b = operands
    buffers = [bytearray(8 * len(OLD[0])) for _ in range(2)]
    arguments = {"dtype": np.int64} if view is np.frombuffer else {}
    for indices in (OLD, NEW, OLD, NEW):
        rows = np.sort(indices[0]) if kind == "csr" else indices[0]
        for buffer, part in zip(buffers, (rows, indices[1]), strict=True):
            filled(buffer, part)
        r, c = (view(buffer, **arguments) for buffer in buffers)
        if kind == "tuple":
            got = sddmm.sddmm((r, c, (M, N)), a, b)
        elif kind == "pattern":
            got = sddmm.sddmm(SparsePattern.from_coo(r, c, (M, N)), a, b)
        elif kind == "operator":
            got = torch.ops.sddmm.sddmm(torch.as_tensor(r), torch.as_tensor(c), a, b, None)
        elif kind == "coo":
            both = torch.stack([torch.as_tensor(r), torch.as_tensor(c)])
            S = torch.sparse_coo_tensor(both, torch.ones(M), (M, N))
            got = sddmm.sddmm(S, a, b)._values()
        else:
            S = torch.sparse_csr_tensor(
                torch.arange(M + 1), torch.as_tensor(c), torch.ones(M), (M, N)
            )
            got = sddmm.sddmm(S, a, b).values()
        check(got, (rows, indices[1]), operands)


def test_a_pattern_over_memory_of_others_keeps_its_indices(
    operands: tuple[Tensor, Tensor],
) -> None:
    rows, cols = OLD[0].copy(), OLD[1].copy()
    patterns = [
        SparsePattern.from_coo(rows, cols, (M, N)),
        SparsePattern.from_coo(torch.from_numpy(rows), torch.from_numpy(cols), (M, N)),
    ]
    plans = [sddmm.plan(S, k=K, dtype=torch.float32) for S in patterns]
    rows[:], cols[:] = NEW
    for S, plan in zip(patterns, plans, strict=True):
        check(sddmm.sddmm(S, *operands), OLD, operands)
        check(plan.run(*operands), OLD, operands)


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_sparse_tensor_whose_original_indices_change(
    layout: str, requires_grad: bool, operands: tuple[Tensor, Tensor]
) -> None:
    a, b = operands[0].clone().requires_grad_(requires_grad), operands[1]
    crow, cols = torch.arange(M + 1), torch.tensor(OLD[1])
    indices = torch.stack([torch.arange(M), cols])
    S = (
        torch.sparse_csr_tensor(crow, cols, torch.ones(M), (M, N))
        if layout == "csr"
        else torch.sparse_coo_tensor(indices, torch.ones(M), (M, N), is_coalesced=True)
    )
    original = cols if layout == "csr" else indices[1]
    for now in (OLD[1], NEW[1], OLD[1]):
        original.copy_(torch.tensor(now))
        values = sddmm.sddmm(S, a, b).values()
        check(values.detach(), (range(M), now), operands)
        if requires_grad:
            a.grad = None
            original.copy_(torch.tensor(NEW[1]))  # the gradient is of the call, not of now
            values.sum().backward()
            torch.testing.assert_close(a.grad, b.mT[torch.tensor(now)])


def test_bad_indices_in_the_place_of_good_ones_are_refused(
    operands: tuple[Tensor, Tensor],
) -> None:
    crow, cols = torch.arange(M + 1), torch.tensor(OLD[1])
    S = torch.sparse_csr_tensor(crow, cols, torch.ones(M), (M, N))
    sddmm.sddmm(S, *operands)
    cols[2] = 10**9
    with pytest.raises(ValueError, match=r"col_indices\[2\] is 1000000000"):
        sddmm.sddmm(S, *operands)


def test_tensors_that_are_given_other_memory(operands: tuple[Tensor, Tensor]) -> None:
    rows, cols = torch.tensor(OLD[0]), torch.tensor(OLD[1])
    S = (rows, cols, (M, N))
    check(sddmm.sddmm(S, *operands), OLD, operands)
    cols.data = torch.tensor(NEW[1])
    check(sddmm.sddmm(S, *operands), (OLD[0], NEW[1]), operands)
    pattern = SparsePattern.from_coo(rows, cols, (M, N))
    plan = sddmm.plan(pattern, k=K, dtype=torch.float32)
    for now in (OLD[1], NEW[1], OLD[1]):
        cols.data = torch.tensor(now)
        gc.collect()  # so that the memory before may be given out again
        check(plan.run(*operands), (OLD[0], now), operands)
        check(sddmm.sddmm(pattern, *operands), (OLD[0], now), operands)


def test_a_plan_follows_what_torch_counts_of_a_sparse_tensor(
    operands: tuple[Tensor, Tensor],
) -> None:
    S = torch.sparse_csr_tensor(torch.arange(M + 1), torch.tensor(OLD[1]), torch.ones(M), (M, N))
    plan = sddmm.plan(S, k=K, dtype=torch.float32)
    check(plan.run(*operands), (range(M), OLD[1]), operands)
    S.col_indices().copy_(torch.tensor(NEW[1]))
    for _ in range(2):
        check(plan.run(*operands), (range(M), NEW[1]), operands)


def test_inference_tensors_are_remembered_by_their_content(
    operands: tuple[Tensor, Tensor],
) -> None:
    with torch.inference_mode():
        rows, cols = torch.tensor(OLD[0]), torch.tensor(OLD[1])
        for now in (OLD, NEW, NEW):
            rows.copy_(torch.tensor(now[0]))
            cols.copy_(torch.tensor(now[1]))
            check(sddmm.sddmm((rows, cols, (M, N)), *operands), now, operands)
            check(torch.ops.sddmm.sddmm(rows, cols, *operands, None), now, operands)
    assert sddmm.cache_info().patterns == 1


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_a_copy_reads_its_own_memory(
    copied: Callable[[Any], Any], layout: str, operands: tuple[Tensor, Tensor]
) -> None:
    S = random_pattern(M, N, 12, layout=layout)
    plan = sddmm.plan(S, k=K, dtype=torch.float32, alpha=2.0)
    sddmm.sddmm(S, *operands), plan.run(*operands), S.by_column
    twin, twin_plan = copied((S, plan)) if copied is not copy.copy else (copied(S), copied(plan))
    if copied is not copy.copy:
        S.col_indices.zero_()
    where = twin.row_ids, twin.col_indices
    for values in (sddmm.sddmm(twin, *operands), twin_plan.run(*operands) / 2):
        check(values, where, operands)
    check(sddmm.sddmm(S, *operands), (S.row_ids, S.col_indices), operands)


def test_a_module_that_holds_a_plan_is_copied_with_it(operands: tuple[Tensor, Tensor]) -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.S = random_pattern(M, N, 12)
            self.plan = sddmm.plan(self.S, k=K, dtype=torch.float32)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            values: Tensor = self.plan.run(a, b)
            return values

    layer = Layer()
    before = layer(*operands)
    twin = copy.deepcopy(layer)
    layer.S.col_indices.zero_()
    torch.testing.assert_close(twin(*operands), before)
    assert twin.plan.pattern is twin.S


def test_what_is_remembered_goes_with_the_tensors_it_is_of(
    operands: tuple[Tensor, Tensor],
) -> None:
    S = random_pattern(M, N, 12).to_coo()
    matrix = torch.sparse_coo_tensor(
        torch.stack([S.row_ids, S.col_indices]), torch.ones(12), (M, N)
    )
    rows, cols = S.row_ids.clone(), S.col_indices.clone()
    sddmm.sddmm((rows, cols, (M, N)), *operands)
    sddmm.sddmm(matrix, *operands)
    assert sddmm.cache_info().patterns == 2
    del matrix
    assert sddmm.cache_info().patterns == 1
    del rows
    assert sddmm.cache_info() == (0, 0, CACHE.max_bytes)


def test_the_cache_counts_what_was_prepared_and_can_be_bounded_and_emptied() -> None:
    n = 500
    S = random_pattern(n, n, 20_000, layout="coo", shuffled=True)
    tensors = S.row_ids.clone(), S.col_indices.clone()
    a, b = torch.randn(n, 8), torch.randn(8, n).requires_grad_()
    sddmm.sddmm((*tensors, (n, n)), a, b).sum().backward()
    index_bytes = sum(x.nbytes for x in tensors)
    # Both views: their perm and indices.
    assert sddmm.cache_info().bytes >= 3 * index_bytes
    other = S.row_ids.clone(), S.col_indices.clone()
    sddmm.set_cache_limit(4 * index_bytes)
    try:
        sddmm.sddmm((*other, (n, n)), a, b)
        assert sddmm.cache_info().patterns == 1
    finally:
        sddmm.set_cache_limit(2**31)
    sddmm.clear_cache()
    assert sddmm.cache_info().bytes == 0
    with pytest.raises(ValueError, match="max_bytes must be an integer >= 0, got -1"):
        sddmm.set_cache_limit(-1)


def test_uncounted_changes_are_found_by_the_check_that_can_be_switched_on(
    monkeypatch: pytest.MonkeyPatch, operands: tuple[Tensor, Tensor]
) -> None:
    # The environment variable that sets it is read once, when sddmm is imported.
    monkeypatch.setattr("sddmm.sparse.index_tensors._CHECK_INDICES", True)
    S = random_pattern(M, N, 12)
    plan = sddmm.plan(S, k=K, dtype=torch.float32)
    sddmm.sddmm(S, *operands)
    S.col_indices.copy_(S.col_indices.flip(0))  # counted
    plan.run(*operands), sddmm.sddmm(S, *operands)
    ctypes.memset(S.col_indices.data_ptr(), 0, 8)
    ctypes.memset(S.col_indices.data_ptr(), 1, 1)
    for use in (lambda: plan.run(*operands), lambda: sddmm.sddmm(S, *operands)):
        with pytest.raises(RuntimeError, match="changed in a way that torch does not count"):
            use()


def test_run_counts_its_change_of_out_and_refuses_out_that_it_reads() -> None:
    S = random_pattern(M, N, M * K)
    plan = sddmm.plan(S, k=K, dtype=torch.float32)
    a, b = torch.randn(M, K), torch.randn(K, N)
    out = torch.ones(M * K)
    leaf = torch.ones(M * K, requires_grad=True)
    product = (leaf * out).sum()
    plan.run(a, b, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with pytest.raises(ValueError, match="out shares memory with a; give it memory of its own"):
        plan.run(a, b, out=a.view(-1))
    with pytest.raises(
        TypeError, match=r"out must be a contiguous float32 tensor .* got <class 'list'"
    ):
        plan.run(a, b, out=[])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="that does not require grad"):
        plan.run(a, b, out=leaf)


@pytest.mark.parametrize("change", ["copy_", "add_", "zero_"])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_plan_of_a_coo_tensor_that_was_given_other_memory_says_so(
    change: str, autocast: bool, operands: tuple[Tensor, Tensor]
) -> None:
    def coo(indices: Any) -> Tensor:
        return torch.sparse_coo_tensor(np.stack(indices), torch.ones(len(indices[0])), (M, N))

    S = coo(OLD).coalesce()
    plan = sddmm.plan(S, k=K, dtype=torch.float32)
    S.values().mul_(2)  # which leaves them where they are
    check(plan.run(*operands) / 2, tuple(S.indices().tolist()), operands)
    S.zero_() if change == "zero_" else getattr(S, change)(coo(NEW))
    with (
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast),
        pytest.raises(ValueError, match="given other indices and values"),
    ):
        plan.run(*operands)


def test_a_copy_of_a_plan_knows_what_changed_before(operands: tuple[Tensor, Tensor]) -> None:
    S = torch.sparse_csr_tensor(torch.arange(M + 1), torch.tensor(OLD[1]), torch.ones(M), (M, N))
    plan = sddmm.plan(S, k=K, dtype=torch.float32)
    S.col_indices().copy_(torch.tensor(NEW[1]))
    check(copy.deepcopy(plan).run(*operands), (range(M), NEW[1]), operands)


def test_indices_of_another_length_are_refused(operands: tuple[Tensor, Tensor]) -> None:
    rows, cols = torch.tensor(OLD[0]), torch.tensor(OLD[1])
    pattern = SparsePattern.from_coo(rows, cols, (M, N))
    plan = sddmm.plan(pattern, k=K, dtype=torch.float32)
    rows.resize_(3)
    for call in (plan.run, lambda a, b: sddmm.sddmm(pattern, a, b)):
        with pytest.raises(ValueError, match=r"row_indices must have \d+ entries .* got 3"):
            call(*operands)
    cols.resize_(3)
    with pytest.raises(ValueError, match=r"and has 3 \(int64, cpu\) now; make a new plan"):
        plan.run(*operands)
    check(sddmm.sddmm(pattern, *operands), (OLD[0][:3], OLD[1][:3]), operands)
