"""What spmm and gradients launch on a GPU, whose kernels g++ compiles for the CPU here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import sddmm
from sddmm import SparsePattern
from sddmm.backends.cuda.cost_model import Cost
from sddmm.backends.cuda.kernels.spmm_gather import ordering
from sddmm.backends.cuda.kernels.spmm_gather.host import SpmmGather
from sddmm.backends.cuda.planning_context import PlanningContext
from sddmm.backends.cuda.spec import AnalysisRequest
from sddmm.products import find_or_prepare, product_problem
from sddmm.testing import assert_spmm_close, emulated_gpu, random_pattern

# The rows are short, and the columns are not.
M, N, D, NNZ = 60, 40, 16, 700
PRODUCTS = ["spmm_rows", "spmm_gather"]
PRODUCT = {*PRODUCTS, "spmm_merge"}


@pytest.fixture
def launches() -> Iterator[list[str]]:
    with emulated_gpu() as names:
        yield names


def pattern() -> SparsePattern:
    return random_pattern(M, N, NNZ, layout="coo", shuffled=True)


@pytest.mark.parametrize("transpose", [False, True])
def test_the_second_product_with_a_pattern_launches_its_kernels_alone(
    launches: list[str], transpose: bool
) -> None:
    S, values, dense = pattern(), torch.randn(NNZ), torch.randn(M if transpose else N, D)
    for _ in range(2):
        launches.clear()
        result = sddmm.spmm(S, dense, values=values, transpose=transpose)
        assert_spmm_close(result, S, dense, values=values, transpose=transpose)
    assert launches
    assert set(launches) <= PRODUCT
    assert launches.count(PRODUCTS[transpose]) == 1


@pytest.mark.parametrize("transpose", [False, True])
def test_the_first_product_analyses_looks_at_rows_and_gathers(
    launches: list[str], transpose: bool
) -> None:
    S = random_pattern(M, N, NNZ, layout="csr").to_torch(torch.randn(NNZ))
    sddmm.spmm(S, torch.randn(M if transpose else N, D), transpose=transpose)
    launched = [name for name in launches if name != "spmm_merge"]
    looks = "spmm_shares" if transpose else "row_starts"
    assert launched == ["analyse", looks, PRODUCTS[transpose]]


def test_all_heads_are_one_launch_of_any_strides(launches: list[str]) -> None:
    S = pattern()
    values, dense = torch.randn(NNZ, 3).T, torch.randn(N, 3, D).transpose(0, 1)
    sddmm.spmm(S, dense, values=values)
    launches.clear()
    result = sddmm.spmm(S, dense, values=values)
    assert [name for name in launches if name in PRODUCT] == ["spmm_rows"]
    assert_spmm_close(result, S, dense, values=values)


def test_gradients_sample_and_gather_and_nothing_else(launches: list[str]) -> None:
    S = pattern()
    a, b, v = (torch.randn(*size).requires_grad_() for size in [(M, D), (D, N), (NNZ,)])

    def step() -> tuple[Tensor, ...]:
        values = torch.ops.sddmm.sddmm(S.row_indices, S.col_indices, a, b, v, alpha=0.5)
        launches.clear()
        return torch.autograd.grad(values.sum(), (a, b, v))

    for _ in range(3):
        grads = step()
    assert set(launches) <= {"row_gather", *PRODUCT}
    assert [launches.count(name) for name in (*PRODUCTS, "row_gather")] == [1, 1, 1]
    rows, cols = S.row_ids, S.col_indices
    matrix = torch.zeros(M, N).index_put((rows, cols), v.detach() * 0.5)
    expected = (matrix @ b.mT, a.mT @ matrix, 0.5 * (a @ b)[rows, cols])
    for got, want in zip(grads, expected, strict=True):
        torch.testing.assert_close(got, want.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("heads", [None, 8])
def test_gradients_put_no_weights_of_heads_in_order(
    launches: list[str], heads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are to take no memory for every head and nonzero. Forward products may."""
    monkeypatch.setattr(ordering, "_TOGETHER_FROM", 1)  # else of millions of nonzeros alone
    S, lead = pattern(), () if heads is None else (heads,)
    a, b = (torch.randn(*lead, rows, D).half().requires_grad_() for rows in (M, N))
    values = torch.randn(*lead, NNZ).half()
    of_forward = [] if heads is None else ["weights_by_nonzero", "spmm_weights"]

    def ordering_launches() -> list[str]:
        return [name for name in launches if "weights" in name]

    torch.autograd.grad(sddmm.sddmm(S, a, b.mT), (a, b), values)
    assert not ordering_launches()
    product = sddmm.spmm(S, b, values=values)
    assert ordering_launches() == of_forward
    torch.autograd.grad(product, b, torch.ones_like(product))
    assert ordering_launches() == of_forward


def test_what_is_prepared_goes_with_a_change_of_the_indices(launches: list[str]) -> None:
    S, values, dense = pattern(), torch.randn(NNZ), torch.randn(M, D)
    sddmm.spmm(S, dense, values=values, transpose=True)
    assert S.row_indices is not None
    S.row_indices.copy_(S.row_indices.flip(0))
    result = sddmm.spmm(S, dense, values=values, transpose=True)
    assert_spmm_close(result, S, dense, values=values, transpose=True)


def test_the_notes_name_the_kernel_and_why_others_do_not_serve(launches: list[str]) -> None:
    S, values, dense = pattern(), torch.randn(NNZ).double(), torch.randn(N, D).double()
    problem = product_problem(S, values, dense, None, False, None)
    notes = find_or_prepare(S, problem).notes
    assert notes[0].startswith("kernel   spmm_gather: ")
    assert all(isinstance(note, str) for note in notes)


def coo(rows: list[int], cols: list[int]) -> SparsePattern:
    return SparsePattern.from_coo(torch.tensor(rows), torch.tensor(cols), (M, N))


SORTED_BY_ROW = {
    "scattered": lambda: random_pattern(M, N, NNZ),
    "duplicates, and columns in any order": lambda: coo([0, 0, 0, 2, 2, 59], [7, 3, 7, 39, 0, 3]),
    "a staircase": lambda: coo([0, 0, 1, 5, 5, 9], [0, 2, 2, 2, 8, 39]),
    "one row": lambda: coo([3] * N, list(range(N))),
    "one column": lambda: coo(list(range(M)), [5] * M),
}


@pytest.mark.parametrize("make", SORTED_BY_ROW.values(), ids=SORTED_BY_ROW)
def test_the_transpose_of_a_pattern_whose_rows_never_fall_is_not_analysed(
    launches: list[str], make: Callable[[], SparsePattern]
) -> None:
    S = make()
    values, dense = torch.randn(S.nnz), torch.randn(M, D)
    result = sddmm.spmm(S, dense, values=values, transpose=True)
    assert_spmm_close(result, S, dense, values=values, transpose=True)
    assert launches.count("analyse") == 1
    launches.clear()
    sddmm.spmm(S, dense.half(), values=values.half(), transpose=True)  # another problem
    assert "analyse" not in launches


def test_the_transpose_of_other_patterns_is_analysed(launches: list[str]) -> None:
    """Beside the pattern, unless that has been sorted by then."""
    S = pattern()
    values, dense = torch.randn(NNZ), torch.randn(M, D)
    analysed = sddmm.spmm(S, dense, values=values, transpose=True)
    assert_spmm_close(analysed, S, dense, values=values, transpose=True)
    assert launches.count("analyse") == 2
    S = pattern()
    sddmm.spmm(S, torch.randn(N, D), values=values)
    launches.clear()
    assert torch.equal(sddmm.spmm(S, dense, values=values, transpose=True), analysed)
    assert "analyse" not in launches


@pytest.mark.parametrize("order", ["any", "columns ascend", "by column"])
def test_the_transpose_has_the_same_bits_whatever_came_before(
    launches: list[str], order: str
) -> None:
    """A column holds many nonzeros, in an order of its rows that sorting by row would change."""
    rows, cols = torch.randint(300, (1500,)), torch.randint(3, (1500,))
    if order != "any":
        place = (cols * 300 + rows * (order == "by column")).argsort(stable=True)
        rows, cols = rows[place], cols[place]
    values, x, y = torch.randn(1500), torch.randn(3, D), torch.randn(300, D)
    first, last = (SparsePattern.from_coo(rows, cols, (300, 3)) for _ in range(2))
    expected = sddmm.spmm(first, y, values=values, transpose=True)
    for _ in range(2):
        sddmm.spmm(last, x, values=values)
        sddmm.sddmm(last, y, x.mT)
    assert torch.equal(sddmm.spmm(last, y, values=values, transpose=True), expected)


def test_rows_that_are_known_to_fall_are_not_analysed_again(
    launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where products ask for another analysis than sampling, as for larger patterns."""
    request = AnalysisRequest((16, 16))
    monkeypatch.setattr(PlanningContext, "segments_request", lambda _: request)
    S = pattern()
    sddmm.sddmm(S, torch.randn(M, D), torch.randn(D, N))
    assert launches.count("analyse") == 1
    sddmm.spmm(S, torch.randn(M, D), values=torch.randn(NNZ), transpose=True)
    assert launches.count("analyse") == 2


@pytest.mark.parametrize("distinct", [True, False])
def test_the_transpose_is_multiplied_by_the_tiles_of_the_pattern(
    launches: list[str], distinct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where gathering seems to take long. distinct: else a position is there twice, and the
    transpose is analysed all the same."""
    monkeypatch.setattr(SpmmGather, "cost_us", lambda *_: Cost(1e6))
    S = random_pattern(200, 150, 4000, layout="coo")
    if not distinct:
        rows, cols = (torch.cat([x[:1], x]) for x in (S.row_ids, S.col_indices))
        S = SparsePattern.from_coo(rows, cols, S.shape)
    values, dense = torch.randn(S.nnz).half(), torch.randn(200, 40).half()
    result = sddmm.spmm(S, dense, values=values, transpose=True)
    assert_spmm_close(result, S, dense, values=values, transpose=True)
    assert any(name.startswith("spmm_tile_") for name in launches)


def test_nonzeros_of_a_matrix_without_rows_are_refused(launches: list[str]) -> None:
    none = torch.zeros(1, dtype=torch.int64)
    S = SparsePattern.from_coo(none, none, (0, N))
    for transpose in (False, True):
        dense = torch.randn(0 if transpose else N, D)
        with pytest.raises(ValueError, match="none is valid"):
            sddmm.spmm(S, dense, values=torch.randn(1), transpose=transpose)
    with pytest.raises(ValueError, match="none is valid"):
        sddmm.sddmm(S, torch.randn(0, D), torch.randn(D, N))
    assert launches == []
