"""The first call with a CSR pattern checks it and computes. The kernels run on the CPU."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
import torch

import sddmm
from gemm_core.arithmetic import ceil_div
from gemm_core.emulation.kernel import missing_compiler
from gemm_core.runtime.device import Device
from sddmm.backends import base
from sddmm.backends.cuda import single_run
from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.cuda.kernels.gather_lines.host import GATHER_LINES, GatherLines
from sddmm.backends.cuda.kernels.gather_rows import host as gather_rows
from sddmm.backends.cuda.kernels.gather_rows.host import Pieces
from sddmm.backends.cuda.kernels.row_gather import host
from sddmm.backends.cuda.kernels.row_gather.host import ROW_GATHER
from sddmm.backends.cuda.pattern_layouts import PatternLayouts
from sddmm.backends.cuda.single_run import (
    GatheredRun,
    LongRowsRun,
    SingleLaunch,
    SingleRun,
    form_of_runs,
)
from sddmm.backends.cuda.spec import AnalysisRequest
from sddmm.problem import SddmmProblem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, assert_close, emulated_gpu
from tests.cases import cases
from tests.sddmm.memory import at_a_cliff

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")

N, K = 50, 24
ROW_LENGTHS = {
    "short rows": [i % 9 for i in range(500)],
    "gaps": [*[0] * 1000, 3, *[0] * 70, 1, 1, *[0] * 3000, 40, *[0] * 63, 5, *[0] * 64, 2, 0, 0],
    "one row": [0, 0, 2000, 0],
    "single nonzeros": [1] * 777,
    "few nonzeros": [int(i % 37 == 5) for i in range(9000)],
    "empty rows at the end": [9, *[0] * 300],
}


def csr_tensor(crow: torch.Tensor, cols: torch.Tensor, rows: int) -> torch.Tensor:
    """A tensor that comes for the first time: nothing is kept of its pattern."""
    values = torch.randn(len(cols))
    return torch.sparse_csr_tensor(crow, cols, values, (rows, N), check_invariants=False)


def by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every first call with a CSR pattern is by rows, as where gathering long ones takes long."""
    monkeypatch.setattr(single_run, "SINGLE_LAUNCH_US", 0.0)
    monkeypatch.setattr(gather_rows, "LONG_ROW", 0)


def in_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every first call with a CSR pattern is by gather_csr, as where rows are short."""
    monkeypatch.setattr(gather_rows, "serves", lambda *_: False)


def by_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every first call is by gather_lines, behind an analysis, as where rows are long."""
    monkeypatch.setattr(single_run, "SINGLE_LAUNCH_US", 0.0)
    backend = CudaBackend({"gather_lines": GATHER_LINES})
    monkeypatch.setattr(base, "BACKENDS", [backend, *base.BACKENDS[1:]])


def short_pieces(problem: SddmmProblem, device: Device) -> Pieces:
    """Three warps take turns in a piece; rows of more than 100 are cut at every 64th nonzero."""
    return Pieces(3, problem.m + ceil_div(problem.nnz, 64) - 1, 100, 64)


@pytest.mark.parametrize("kernel", ["gather_csr", "gather_rows"])
@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("case", ROW_LENGTHS)
def test_every_nonzero_is_computed_in_its_row(
    case: str, index_dtype: torch.dtype, is_large: bool, kernel: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """is_large: as where each warp has many nonzeros."""
    monkeypatch.setattr(base, "BACKENDS", [CudaBackend(), *base.BACKENDS[1:]])
    if kernel == "gather_rows":
        by_rows(monkeypatch)
    else:
        in_one_launch(monkeypatch)
    if is_large:
        monkeypatch.setattr(host, "share_of_warp", lambda *_: host.MAX_SHARE)
        monkeypatch.setattr(gather_rows, "pieces_of", short_pieces)
    lengths = torch.tensor(ROW_LENGTHS[case])
    crow = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(index_dtype)
    cols = torch.randint(0, N, (int(lengths.sum()),)).to(index_dtype)
    matrix = csr_tensor(at_a_cliff(crow), at_a_cliff(cols), len(lengths))
    a, b = torch.randn(len(lengths), K), torch.randn(N, K).mT
    with emulated_gpu() as launches:
        product = sddmm.sddmm(matrix, a, b)
    assert launches == [kernel]
    assert_close(product.values(), matrix, a, b)


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize(
    ("rows", "row_nnz"), [(1, 4096), (7, 300), (40, 64), (300, 64)], ids=lambda n: str(n)
)
def test_warps_take_turns_in_the_rows_of_few(
    rows: int, row_nnz: int, heads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the host divides them."""
    monkeypatch.setattr(base, "BACKENDS", [CudaBackend(), *base.BACKENDS[1:]])
    monkeypatch.setattr(single_run, "SINGLE_LAUNCH_US", 0.0)
    crow = torch.arange(rows + 1) * row_nnz
    matrix = csr_tensor(crow, torch.randint(0, N, (rows * row_nnz,)), rows)
    lead = () if heads is None else (heads,)
    a, b = torch.randn(*lead, rows, K), torch.randn(*lead, N, K).mT
    with emulated_gpu() as launches:
        product = sddmm.sddmm(matrix, a, b, alpha=-2.0, scale=True)
    assert launches == ["gather_rows"]
    assert_close(product if heads else product.values(), matrix, a, b, alpha=-2.0, scale=True)


@pytest.mark.parametrize(
    ("kernel", "dtype", "row_bytes"),
    cases(
        itertools.product(
            ["gather_csr", "gather_rows"],
            [torch.float16, torch.bfloat16, torch.float32],
            [192, 200, 256, 320, 384, 512, 576, 640, 704, 768, 896, 1024, 1280],
        ),
        here=[
            ("gather_rows", torch.float16, 192),
            ("gather_rows", torch.float16, 704),
            ("gather_rows", torch.float16, 1024),
            ("gather_rows", torch.float32, 576),
            ("gather_rows", torch.float32, 1024),
            ("gather_csr", torch.float16, 200),
            ("gather_csr", torch.bfloat16, 1280),
            ("gather_csr", torch.float32, 704),
        ],
    ),
)  # fmt: skip
def test_rows_are_gathered_in_equal_passes_and_with_a_rest(
    kernel: str, dtype: torch.dtype, row_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "BACKENDS", [CudaBackend(), *base.BACKENDS[1:]])
    if kernel == "gather_rows":
        by_rows(monkeypatch)
    else:
        in_one_launch(monkeypatch)
    k = row_bytes // dtype.itemsize
    matrix = csr_tensor(torch.arange(6) * 70, torch.randint(0, N, (350,)), 5)
    a, b = torch.randn(5, k).to(dtype), torch.randn(N, k).to(dtype).mT
    with emulated_gpu() as launches:
        product = sddmm.sddmm(matrix, a, b, scale=False)
    assert launches == [kernel]
    assert_close(product.values(), matrix, a, b, scale=False)


def test_indices_that_do_not_fit_are_told_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "BACKENDS", [CudaBackend(), *base.BACKENDS[1:]])
    pattern = SparsePattern.from_csr(torch.tensor([0, 2, 3]), torch.tensor([1, 4, 0]), (2, N))
    a, b, empty = torch.randn(2, K), torch.randn(N, K).mT, torch.empty

    def full(*size: object, dtype: torch.dtype, **options: object) -> torch.Tensor:
        if dtype == torch.int32:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty(*size, dtype=dtype, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 20))
    with emulated_gpu():
        monkeypatch.setattr(torch, "empty", full)
        what = "row ids and columns of 3 nonzeros needs 12 bytes"
        with pytest.raises(torch.OutOfMemoryError, match=what):
            sddmm.sddmm(pattern, a, b)


def test_short_rows_are_analysed_where_gathering_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(single_run, "SINGLE_LAUNCH_US", 0.0)
    monkeypatch.setattr(base, "BACKENDS", [CudaBackend(), *base.BACKENDS[1:]])
    matrix = csr_tensor(torch.tensor([0, 2, 4, 6]), torch.arange(6), 3)
    a, b = torch.randn(3, K), torch.randn(N, K).mT
    with emulated_gpu() as launches:
        assert_close(sddmm.sddmm(matrix, a, b).values(), matrix, a, b)
    assert launches == ["analyse", "row_gather"]


@pytest.mark.parametrize(
    ("kernel", "k", "weighted", "dtype", "heads"),
    cases(
        itertools.chain(
            itertools.product(
                ["row_gather", "gather_rows"], [77, 96], [True, False],
                [torch.float16, torch.float32], [None, 2],
            ),
            itertools.product(
                ["gather_lines"], [80, 96], [True, False], [torch.float32], [None, 2]
            ),
        ),
        here=[
            ("row_gather", 77, True, torch.float16, 2),
            ("row_gather", 77, False, torch.float32, None),
            ("row_gather", 96, True, torch.float32, 2),
            ("gather_rows", 77, True, torch.float32, 2),
            ("gather_rows", 77, False, torch.float16, 2),
            ("gather_rows", 96, True, torch.float16, None),
            ("gather_lines", 80, True, torch.float32, 2),
            ("gather_lines", 96, False, torch.float32, None),
        ],
    ),
)  # fmt: skip
def test_slices_of_k_are_added_one_after_the_other(
    kernel: str, k: int, weighted: bool, dtype: torch.dtype, heads: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """As where L2 holds a slice of the operands alone; the last slice may be a shorter one."""
    monkeypatch.setattr(base, "BACKENDS", [CudaBackend(), *base.BACKENDS[1:]])
    kernels = [kernel] * 3
    if kernel == "gather_rows":
        by_rows(monkeypatch)
    else:
        kernels = ["analyse", *kernels]
    if kernel == "gather_lines":
        by_lines(monkeypatch)
    monkeypatch.setattr(host, "gather_slice", lambda *_: 32)
    crow, cols = torch.arange(0, 301, 10), torch.arange(300) % N
    matrix = csr_tensor(crow, cols, 30).to(dtype)
    lead = () if heads is None else (heads,)
    a = torch.randn(*lead, 30, k + 4).to(dtype)[..., :k]
    b = torch.randn(*lead, N, k).to(dtype).mT
    with emulated_gpu() as launches:
        product = sddmm.sddmm(matrix, a, b, alpha=0.5, scale=weighted)
    assert launches == kernels
    values = product if heads else product.values()
    assert_close(values, matrix, a, b, alpha=0.5, scale=weighted)


@pytest.mark.parametrize(
    ("rows", "nnz", "k", "kernel", "runs"),
    [
        (1_000, 100_000, 64, "row_gather", LongRowsRun),
        (5_000, 160_000, 64, "row_gather", LongRowsRun),  # a wave or two of rows of 32
        (5_000, 150_000, 64, "row_gather", SingleLaunch),
        (50_000, 1_600_000, 64, "row_gather", SingleLaunch),  # many waves of such rows
        (50_000, 3_200_000, 64, "row_gather", LongRowsRun),
        (100_000, 1_000_000, 64, "row_gather", GatheredRun),  # many rows to walk
        (100_000, 100_000, 64, "row_gather", SingleLaunch),  # and few
        (50_000, 1_600_000, 512, "row_gather", GatheredRun),
        (4_000, 80_000, 1024, "gather_lines", GatheredRun),  # which reads what an analysis finds
        (4_000, 80_000, 1024, "row_gather", SingleLaunch),
    ],
)
def test_a_second_launch_must_be_worth_its_time(
    rows: int, nnz: int, k: int, kernel: str, runs: type[SingleRun[Any]]
) -> None:
    problem = SddmmProblem(
        m=rows, n=20_000, k=k, nnz=nnz, dtype=torch.float32, out_dtype=torch.float32,
        precision="ieee", index_dtype=torch.int32, heads=None, device=torch.device("cpu"),
    )  # fmt: skip
    with emulated_gpu():
        by_rows = gather_rows.serves(problem, H200, True, False)
        gather = GATHER_LINES if kernel == "gather_lines" else ROW_GATHER
        make = form_of_runs(gather, problem, H200, True, False, by_rows)
        assert type(make(problem, H200)) is runs


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize(("shift", "kernel"), [(0, "gather_lines"), (1, "row_gather")])
def test_lines_are_gathered_where_rows_begin_with_a_chunk(
    shift: int, kernel: str, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_lines(monkeypatch)
    matrix = csr_tensor(torch.arange(0, 301, 10), torch.arange(300) % N, 30)
    S = SparsePattern.from_torch(matrix) if is_kept else matrix
    a = torch.randn(30 * K + shift)[shift:].view(30, K)
    b = torch.randn(N, 2 * K)[:, :K].mT
    with emulated_gpu() as launches:
        product = sddmm.sddmm(S, a, b, scale=False)
    assert launches == ["analyse", kernel]
    assert_close(product if is_kept else product.values(), matrix, a, b, scale=False)


@pytest.mark.parametrize(("pitch", "is_planned"), [(K, False), (2000, True)])
def test_operands_of_64_gib_or_more_are_left_to_a_plan(
    pitch: int, is_planned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As if 80,000 bytes were so many."""
    by_lines(monkeypatch)
    assert GatherLines.span_bytes == 64 * 2**30
    monkeypatch.setattr(GatherLines, "span_bytes", 80_000)  # the real bound needs 64 GiB
    caplog.set_level(logging.DEBUG, "sddmm")
    pattern = SparsePattern.from_csr(torch.arange(0, 31, 3), torch.arange(30) % N, (10, N))
    a, b = torch.randn(10, pitch)[:, :K], torch.randn(N, K).mT
    with emulated_gpu() as launches:
        values = sddmm.sddmm(pattern, a, b)
    assert ("run(s) of" in caplog.text) == is_planned
    assert launches[-1] == "gather_lines"
    assert_close(values, pattern, a, b)


def test_an_analysis_after_first_calls_counts_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that report to the host share memory with their own successors alone."""
    monkeypatch.setattr(base, "BACKENDS", [CudaBackend(), *base.BACKENDS[1:]])
    a, b = torch.randn(3, K), torch.randn(N, K).mT
    crow, cols = torch.tensor([0, 2, 4, 6], dtype=torch.int32), torch.arange(6, dtype=torch.int32)
    found = []
    with emulated_gpu() as launches:
        for _ in range(4):
            pattern = SparsePattern.from_csr(crow, cols, (3, N))
            analysis = PatternLayouts(pattern, H200).analysis(AnalysisRequest((2, 4)))
            found.append((analysis.runs, analysis.row_segments, analysis.distinct))
            sddmm.sddmm(csr_tensor(crow.clone(), cols.clone(), 3), a, b)
    assert launches == ["analyse", "gather_csr"] * 4
    assert found == [(3, 3, True)] * 4


def test_a_pattern_that_is_kept_is_analysed_for_later_plans() -> None:
    pattern = SparsePattern.from_csr(torch.tensor([0, 2, 4, 6]), torch.arange(6), (3, N))
    a, b = torch.randn(3, K), torch.randn(N, K).mT
    with emulated_gpu() as launches:
        assert_close(sddmm.sddmm(pattern, a, b), pattern, a, b)
    assert launches == ["analyse", "row_gather"]


def test_a_first_call_that_autograd_records_makes_no_plan_either(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pattern = SparsePattern.from_csr(torch.tensor([0, 2, 4, 6]), torch.arange(6), (3, N))
    a, b = torch.randn(3, K, requires_grad=True), torch.randn(N, K).mT
    caplog.set_level(logging.DEBUG, "sddmm")
    with emulated_gpu() as launches:
        values = sddmm.sddmm(pattern, a, b)
        logged = caplog.text
        assert_close(values.detach(), pattern, a.detach(), b)
    assert launches == ["analyse", "row_gather"]
    assert "without a plan" in logged
    assert "run(s) of" not in logged


@pytest.mark.parametrize(
    "kernels",
    [["gather_csr"], ["gather_rows"], ["analyse", "row_gather"], ["analyse", "gather_lines"]],
)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("crow", "col", "message"),
    [
        ([0, 4, 2, 6], 1, "crow_indices"),
        ([1, 2, 4, 6], 1, "crow_indices must start with 0"),
        ([0, 2, 4, 5], 1, "crow_indices must end with nnz = 6"),
        ([0, -(2**31), 2**31 - 1, 6], 1, "crow_indices"),
        ([0, 2, 4, 6], N, f"is {N}"),
        ([0, 2, 4, 6], -1, "is -1"),
    ],
)
def test_a_wrong_pattern_raises_and_the_next_one_is_computed(
    crow: list[int], col: int, message: str, index_dtype: torch.dtype, kernels: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(base, "BACKENDS", [CudaBackend(), *base.BACKENDS[1:]])
    if kernels == ["gather_rows"]:
        by_rows(monkeypatch)
    elif kernels[-1] == "gather_lines":
        by_lines(monkeypatch)
    elif len(kernels) > 1:
        monkeypatch.setattr(single_run, "SINGLE_LAUNCH_US", 0.0)
    a, b = torch.randn(3, K), torch.randn(N, K).mT
    wrong = torch.tensor(crow), torch.tensor([0, 3, 1, 4, 2, col])
    right = torch.tensor([0, 2, 4, 6]), torch.tensor([0, 3, 1, 4, 2, 1])
    for indices in (wrong, right, wrong):
        offsets, cols = (x.to(index_dtype) for x in indices)
        matrix = csr_tensor(offsets, cols, 3)
        with emulated_gpu() as launches:
            if indices is wrong:
                with pytest.raises(ValueError, match=message):
                    sddmm.sddmm(matrix, a, b)
            else:
                assert_close(sddmm.sddmm(matrix, a, b).values(), matrix, a, b)
        assert launches == kernels
