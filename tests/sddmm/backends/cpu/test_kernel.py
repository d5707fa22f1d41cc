"""The CPU kernel: chunks, tiles and tails, each against every value written once and right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import sddmm
from sddmm.backends.cpu import backend as cpu
from sddmm.backends.cpu.kernel import row_of, sample
from sddmm.problem import make_problem
from sddmm.testing import random_pattern


def run_kernel(pattern: Any, k: int, width: int, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """Values by the kernel in chunks, and exact ones: small integers have no rounding."""
    rng = np.random.default_rng(3)
    m, n = pattern.shape
    a = rng.integers(-4, 5, (m, k)).astype(np.float32)
    b = rng.integers(-4, 5, (n, k)).astype(np.float32)
    crow, cols = pattern.major_indices.numpy(), pattern.col_indices.numpy()
    out = np.full(pattern.nnz, np.nan, np.float32)
    for begin in range(0, pattern.nnz, chunk):
        end = min(begin + chunk, pattern.nnz)
        sample(crow, cols, a, b, np.float32(1), out, width, begin, end)
    return out, (a @ b.T)[pattern.row_ids.numpy(), cols]


@pytest.mark.parametrize("chunk", [1, 3, 8, 9, 64, 10**6])
@pytest.mark.parametrize("width", [0, 1, 5, 16, 40])
def test_any_chunks_and_tiles_give_every_value(chunk: int, width: int) -> None:
    got, expected = run_kernel(random_pattern(23, 37, 400), 9, width, chunk)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("length", range(1, 20))
def test_runs_of_any_length_write_their_own_values_only(length: int) -> None:
    rng = np.random.default_rng(length)
    a, b = np.ones((3, 5), np.float32), rng.integers(1, 9, (30, 5)).astype(np.float32)
    crow, cols = np.array([0, 4, 4 + length, 40]), rng.integers(0, 30, 40)
    out = np.full(40, -1.0, np.float32)
    sample(crow, cols, a, b, np.float32(2), out, 0, 4, 4 + length)
    expected = np.full(40, -1.0, np.float32)
    expected[4 : 4 + length] = 2 * b[cols[4 : 4 + length]].sum(1)
    np.testing.assert_array_equal(out, expected)


def test_empty_rows_at_the_start_the_middle_and_the_end() -> None:
    crow = torch.tensor([0, 0, 0, 3, 3, 3, 5, 5])
    from sddmm import SparsePattern

    pattern = SparsePattern.from_csr(crow, torch.tensor([2, 0, 1, 2, 2]), (7, 3))
    for width in (0, 1, 2):
        for chunk in (1, 2, 5):
            got, expected = run_kernel(pattern, 4, width, chunk)
            np.testing.assert_array_equal(got, expected)
    assert [row_of(crow.numpy(), i) for i in range(5)] == [2, 2, 2, 5, 5]


def test_unsorted_columns_wait_for_no_tile_forever() -> None:
    from sddmm import SparsePattern

    cols = torch.tensor([9, 0, 5, 3, 8, 1])
    pattern = SparsePattern.from_csr(torch.tensor([0, 4, 6]), cols, (2, 10))
    got, expected = run_kernel(pattern, 3, 4, 6)
    np.testing.assert_array_equal(got, expected)


def problem(m: int, n: int, nnz: int, k: int) -> Any:
    shape = random_pattern(m, n, 0)
    made = make_problem(shape, k=k, dtype=torch.float32)
    return made._replace(nnz=nnz)


def test_tiles_are_used_where_b_exceeds_the_cache_and_rows_are_dense_enough() -> None:
    assert cpu.tile_width(problem(10_000, 10_000, 5_000_000, 256), 4) == 1024
    assert cpu.tile_width(problem(10_000, 10_000, 5_000_000, 1024), 4) == 256
    assert cpu.tile_width(problem(10_000, 10_000, 1_000_000, 256), 4) == 0
    assert cpu.tile_width(problem(10_000, 10_000, 100_000, 256), 4) == 0
    assert cpu.tile_width(problem(1_000, 1_000, 500_000, 256), 4) == 0
    assert cpu.tile_width(problem(100_000, 100_000, 3_000_000, 256), 4) == 0
    assert cpu.tile_width(problem(10, 10, 5, 0), 4) == 0


def test_a_tiled_problem_is_right_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    import sddmm
    from sddmm.testing import assert_close

    monkeypatch.setattr(cpu, "_TILE_BYTES", 2**12)  # so that a small matrix has several tiles
    monkeypatch.setattr(cpu, "_TILED_CHUNK", 2**11)  # and they several chunks
    monkeypatch.setattr(cpu, "_TILED_RUN_WORK", 4)  # and rows little work in each
    S = random_pattern(300, 200, 30_000, layout="coo", shuffled=True)
    made = make_problem(S, k=33, dtype=torch.float32)
    assert cpu.tile_width(made, 4) == 31
    a, b = torch.randn(300, 33), torch.randn(33, 200)
    assert_close(sddmm.plan(S, k=33, dtype=a.dtype, backend="cpu").run(a, b), S, a, b)


@pytest.mark.parametrize("k", [8, 1024])  # of one chunk, and of several
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("wrong", ["col", "negative", "falls", "falls last", "end", "start"])
def test_a_first_call_refuses_a_wrong_csr_tensor(
    index_dtype: torch.dtype, wrong: str, k: int
) -> None:
    """It checks columns chunk by chunk, and crow_indices before any product."""
    pattern = random_pattern(40, 300, 9000, index_dtype=index_dtype)
    crow, cols = pattern.major_indices.clone(), pattern.col_indices.clone()
    S = torch.sparse_csr_tensor(crow, cols, torch.ones(9000), (40, 300))
    indices, at, value, message = {
        "col": (S.col_indices(), 8999, 300, r"col_indices\[8999\] is 300"),
        "negative": (S.col_indices(), 0, -1, r"col_indices\[0\] is -1"),
        "falls": (S.crow_indices(), 7, 9000, "crow_indices must never fall"),
        "falls last": (S.crow_indices(), 39, 9001, "crow_indices must never fall"),
        "end": (S.crow_indices(), 40, 9001, "crow_indices must end with nnz = 9000"),
        "start": (S.crow_indices(), 0, 1, "crow_indices must start with 0"),
    }[wrong]
    indices[at] = value
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            sddmm.sddmm(S, torch.randn(40, k), torch.randn(k, 300))
