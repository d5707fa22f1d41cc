"""Products of block patterns by whole tiles: the kernels' sources, run on the CPU."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch

from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.reference import reference_product
from sddmm.memory import memory_blocks, total_bytes
from sddmm.products import product_problem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import emulated_gpu
from tests.cases import cases
from tests.sddmm.backends.cuda.test_blocks_on_cpu import block_pattern

pytestmark = pytest.mark.usefixtures("kernels_on_cpu")


def check(
    pattern: SparsePattern,
    transpose: bool,
    dtype: torch.dtype = torch.float16,
    k: int = 40,
    heads: int | None = None,
    has_factors: bool = False,
) -> list[str]:
    """The product of small integers is exact, in any order; returns what was launched."""
    generator, lead = torch.Generator().manual_seed(k), () if heads is None else (heads,)

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(-2, 3, shape, generator=generator).to(dtype)

    values = integers(*lead, pattern.nnz)
    dense = integers(*lead, pattern.shape[0 if transpose else 1], k)
    factors = integers(pattern.nnz) if has_factors else None
    problem = product_problem(pattern, values, dense, factors, transpose, torch.float32)
    out = torch.full(problem.out_shape(), 777.0)
    with emulated_gpu() as launches:
        run = CudaBackend().prepare_product(pattern, problem, transpose)
        run(values, factors, dense, 2.0, out)
    matrix = pattern.expanded.T if transpose else pattern.expanded
    assert torch.equal(out.double(), reference_product(matrix, values, dense, factors, alpha=2.0))
    return launches


@pytest.mark.parametrize(
    ("blocksize", "transpose"),
    cases(
        itertools.product([(16, 16), (64, 64), (32, 80), (128, 64)], [False, True]),
        here=[((16, 16), False), ((64, 64), True), ((32, 80), False), ((32, 80), True)],
    ),
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_unsorted_blocks_one_of_them_twice_and_a_row_without_any(
    blocksize: tuple[int, int], transpose: bool, dtype: torch.dtype
) -> None:
    launches = check(block_pattern(blocksize), transpose, dtype)
    assert launches[:2] == ["analyse", "block_lines"]


@pytest.mark.parametrize("transpose", [False, True])
def test_heads_factors_and_indices_of_32_bits(transpose: bool) -> None:
    pattern = block_pattern((48, 16), index_dtype=torch.int32)
    launches = check(pattern, transpose, heads=2, has_factors=True)
    assert "block_lines" in launches


@pytest.mark.parametrize("transpose", [False, True])
def test_rows_of_many_blocks_are_cut(transpose: bool) -> None:
    """A block in each of 40 columns, in one row of blocks of three."""
    crow, col = torch.tensor([0, 0, 40, 40]), torch.arange(40).flip(0)
    pattern = SparsePattern.from_bsr(crow, col, (16, 32), (48, 40 * 32))
    launches = check(pattern, transpose)
    assert ("spmm_tile_sums" in launches) != transpose


@pytest.mark.parametrize(
    ("blocksize", "dtype"), [((16, 16), torch.float64), ((24, 16), torch.float16)]
)
def test_other_blocks_and_dtypes_are_computed_nonzero_by_nonzero(
    blocksize: tuple[int, int], dtype: torch.dtype
) -> None:
    assert "block_lines" not in check(block_pattern(blocksize), False, dtype)


def test_no_index_of_a_nonzero_is_ever_made() -> None:
    pattern = block_pattern((64, 64))
    values = torch.ones(pattern.nnz).half()
    for transpose, rows in ((False, 256), (True, 192)):
        problem = product_problem(
            pattern, values, torch.ones(rows, 8).half(), None, transpose, None
        )
        with emulated_gpu():
            CudaBackend().prepare_product(pattern, problem, transpose)
    assert total_bytes(memory_blocks(pattern)) < pattern.nnz


def test_the_explanation_names_the_other_kernels_and_their_reasons() -> None:
    pattern = block_pattern((64, 64))
    values, dense = torch.ones(pattern.nnz).half(), torch.ones(256, 64).half()
    problem = product_problem(pattern, values, dense, None, False, None)
    with emulated_gpu():
        notes = CudaBackend().prepare_product(pattern, problem).notes
    assert notes[0].startswith("kernel   spmm_tile_")
    assert any(line.startswith("  not    spmm_tile16_64: ") for line in notes)
    assert any("spmm_tile_float_64: computes float32, not float16" in line for line in notes)
    with emulated_gpu():
        small = block_pattern((16, 48))
        values, dense = torch.ones(small.nnz).half(), torch.ones(192, 64).half()
        problem = product_problem(small, values, dense, None, False, None)
        notes = CudaBackend().prepare_product(small, problem).notes
    reason = "multiplies tiles of 32 rows and columns, and blocks are 16x48"
    assert f"  not    spmm_tile32_64: {reason}" in notes


def test_the_empty_tiles_of_a_large_matrix_are_not_counted() -> None:
    """Its grid of tiles of 16 x 16 has more than 2^28."""
    size = 2**18 + 16
    crow = torch.zeros(size // 16 + 1, dtype=torch.int64)
    crow[5:], crow[-1] = 1, 2
    pattern = SparsePattern.from_bsr(
        crow, torch.tensor([7, size // 16 - 1]), (16, 16), (size, size)
    )
    assert "block_lines" in check(pattern, False, k=2)


def test_what_is_prepared_is_freed_at_once() -> None:
    pattern = block_pattern((16, 16))
    values, dense = torch.ones(pattern.nnz).half(), torch.ones(64, 8).half()
    problem = product_problem(pattern, values, dense, None, False, None)
    with emulated_gpu():
        executor = CudaBackend().prepare_product(pattern, problem)
        executor(values, None, dense, 1.0, torch.empty(48, 8).half())
    alive = weakref.ref(executor)
    plan = weakref.ref(executor._plans[0].run)
    gc.disable()
    try:
        del executor
        assert alive() is None
        assert plan() is None
    finally:
        gc.enable()


def test_indices_that_are_wrong_are_refused_in_words() -> None:
    crow, col = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 4, 2])
    pattern = SparsePattern.from_bsr(crow, col, (16, 16), (48, 64))
    with pytest.raises(ValueError, match=r"col_indices\[1\] is 4; valid .* in blocks of 16x16"):
        check(pattern, False)
