"""The GPU kernel of softmax, run on the CPU: short rows, rows that shares cut, and guards."""

from __future__ import annotations

import pytest
import torch

import sddmm
from sddmm import SparsePattern
from sddmm.backends.cuda.kernels.softmax_shares.host import SHARE
from sddmm.testing import assert_softmax_close, emulated_gpu, random_pattern
from tests.cases import cases
from tests.sddmm.memory import at_a_cliff

pytestmark = pytest.mark.usefixtures("kernels_on_cpu")


def of_lengths(lengths: list[int], shuffled: bool = False) -> SparsePattern:
    """The pattern with so many nonzeros in each row."""
    rows = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    cols = torch.arange(len(rows)) % 7
    if shuffled:
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))
        rows, cols = rows[order], cols[order]
    return SparsePattern.from_coo(rows, cols, (len(lengths), 7))


# Rows that fill windows to the last nonzero, begin with one, span several, follow each other.
CUT = [3, 2 * SHARE + 5, 0, 0, SHARE - 8, SHARE, SHARE + 1, 1, 3 * SHARE, 1, 2]
LENGTHS = {
    "one nonzero": [0, 1, 0],
    "rows of few nonzeros": [15] * 300,
    "rows of one and of none": [1, 0, 0] * 700,
    "a long row among short ones": [2] * 200 + [700] + [3] * 100,
    "rows of 40 to 100": list(range(40, 100)),
    "cut rows": CUT,
    "a row as long as a share that begins in one and ends in the next": [5, SHARE, 3, 2 * SHARE],
    "shares that begin with a cut row": [SHARE, 2 * SHARE, 5, SHARE - 5, SHARE + 1],
}


def check(pattern: SparsePattern, dtype: torch.dtype, heads: int | None = None) -> list[str]:
    """Compare the softmax and its gradient with float64; the kernels launched."""
    lead = () if heads is None else (heads,)
    generator = torch.Generator().manual_seed(0)
    values = 4 * torch.randn(*lead, pattern.nnz, generator=generator, dtype=torch.float64)
    values = at_a_cliff(values.to(dtype)).requires_grad_()
    grad = at_a_cliff(torch.randn(*lead, pattern.nnz, generator=generator).to(dtype))
    with emulated_gpu() as launches:
        p = sddmm.softmax(pattern, values)
        p.backward(grad)
    assert_softmax_close(p, pattern, values)
    assert values.grad is not None
    matrix = {"m": pattern.shape[0], "n": pattern.shape[1]}
    inputs = (pattern.row_ids, pattern.col_ids, p.detach(), grad)
    operator = sddmm.ops.base.OPERATORS["softmax_backward"]
    truth = operator.reference(*inputs, **matrix)
    bound = operator.error_bound(truth, *inputs, **matrix)
    assert ((values.grad.double() - truth).abs() <= bound).all()
    return launches


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("form", ["coo", "shuffled coo", "csr"])
def test_rows_of_every_length(kind: str, form: str) -> None:
    pattern = of_lengths(LENGTHS[kind], form == "shuffled coo")
    launches = check(pattern.to_csr() if form == "csr" else pattern, torch.float32)
    cuts = max(LENGTHS[kind]) > SHARE
    assert launches.count("row_softmax") == (4 if cuts else 2)


@pytest.mark.parametrize(
    "dtype",
    cases([torch.float16, torch.bfloat16, torch.float64], here=[torch.float16, torch.float64]),
)
def test_every_dtype_and_heads(dtype: torch.dtype) -> None:
    check(of_lengths(CUT), dtype, heads=2)
    check(random_pattern(90, 30, 900), dtype, heads=3)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_a_csr_pattern_is_checked_by_the_analysis_that_others_share(
    index_dtype: torch.dtype,
) -> None:
    pattern = random_pattern(90, 30, 900, index_dtype=index_dtype)
    wrong = pattern.clone()
    assert wrong.crow_indices is not None
    wrong.crow_indices[40] = 901
    values, x = torch.randn(900), torch.randn(30, 8)
    with emulated_gpu() as launches:
        with pytest.raises(ValueError, match="crow_indices must never fall"):
            sddmm.softmax(wrong, values)
        sddmm.spmm(pattern, x, values=values)
        launches.clear()
        for _ in range(2):
            assert_softmax_close(sddmm.softmax(pattern, values), pattern, values)
        assert launches == ["softmax_shares", "row_softmax", "row_softmax"]


def test_infinities_and_nan_stay_in_their_rows() -> None:
    """In cut rows too: a part of nothing but -inf counts as nothing."""
    pattern = of_lengths([4, 2 * SHARE + 9, 5, SHARE + 1, 6, SHARE + 2, 3])
    values = torch.randn(pattern.nnz)
    rows = pattern.row_ids
    values[4 : SHARE + 50] = -torch.inf
    values[rows == 3] = -torch.inf
    values[(rows == 4).nonzero()[:2]] = -torch.inf
    values[(rows == 5).nonzero()[-1]] = torch.nan
    values[(rows == 6).nonzero()[1]] = torch.inf
    with emulated_gpu():
        p = sddmm.softmax(pattern, values)
    for row in range(7):
        expected = torch.softmax(values[rows == row].double(), 0).float()
        torch.testing.assert_close(p[rows == row], expected, equal_nan=True)


def test_any_stride_between_heads() -> None:
    pattern = of_lengths([3, 9, 30])
    whole = torch.randn(42, 2, 3)
    for values in (whole[:, 0].mT, whole.permute(1, 2, 0)[0], torch.randn(2, 3, 42)[:, 1]):
        with emulated_gpu():
            assert_softmax_close(sddmm.softmax(pattern, values), pattern, values)
