"""The block kernels' sources, run on the CPU, and which of them the planner of blocks chooses."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch

import sddmm
from sddmm.backends.cuda.kernels.block import BlockKernel
from sddmm.backends.cuda.kernels.registry import BLOCK_KERNELS
from sddmm.memory import memory_blocks, total_bytes
from sddmm.problem import make_problem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, assert_close, emulated_gpu, random_pattern
from tests.cases import cases
from tests.sddmm.backends.cuda.exact_samples import check
from tests.sddmm.memory import at_a_cliff

pytestmark = pytest.mark.usefixtures("kernels_on_cpu")

# The last kernel, whose tile is the smallest, of each source; the others in the GPU suite.
ONE_OF_EACH_SOURCE = {kernel.path: kernel for kernel in BLOCK_KERNELS.values()}.values()
every_kernel = pytest.mark.parametrize(
    "kernel",
    cases(BLOCK_KERNELS.values(), here=ONE_OF_EACH_SOURCE, name=lambda kernel: kernel.name),
)


def block_pattern(
    blocksize: tuple[int, int],
    down: int = 3,
    across: int = 4,
    index_dtype: torch.dtype | None = None,
) -> SparsePattern:
    """Half of the blocks, none of them in the second row of blocks, unsorted and one twice."""
    cols = [[3, 0, 0], [], *([2, 1] for _ in range(2, down))]
    counts = torch.tensor([0, *itertools.accumulate(map(len, cols))], dtype=index_dtype)
    col = torch.tensor([x for row in cols for x in row], dtype=counts.dtype)
    shape = (down * blocksize[0], across * blocksize[1])
    return SparsePattern.from_bsr(counts, col, blocksize, shape)


@every_kernel
@pytest.mark.parametrize("blocksize", [(40, 24), (64, 96), (3, 5), (70, 1), (1, 70)])
def test_blocks_of_other_sizes_than_tiles(kernel: BlockKernel, blocksize: tuple[int, int]) -> None:
    _, launches = check(kernel.name, block_pattern(blocksize), 40, kernel.dtypes[0])
    assert launches == ["analyse", kernel.name]


@every_kernel
@pytest.mark.parametrize("k", cases([0, 1, 64, 100], here=[0, 1, 100]))
def test_every_k(kernel: BlockKernel, k: int) -> None:
    pattern = block_pattern((20, 36), index_dtype=torch.int32)
    check(kernel.name, pattern, k, kernel.dtypes[0])


@every_kernel
@pytest.mark.parametrize("blocksize", [(16, 32), (5, 7)])
def test_unaligned_rows_heads_and_scaling(kernel: BlockKernel, blocksize: tuple[int, int]) -> None:
    check(
        kernel.name, block_pattern(blocksize), 24, kernel.dtypes[-1], heads=2, aligned=False,
        scaled=True, out_dtype=kernel.dtypes[-1],
    )  # fmt: skip


@every_kernel
@pytest.mark.parametrize(
    ("offset", "out_dtype"),
    cases(
        itertools.product([0, 1], [torch.float16, torch.float64]),
        here=[(0, torch.float16), (1, torch.float16)],
    ),
)
def test_nothing_beside_the_values_is_written(
    kernel: BlockKernel, offset: int, out_dtype: torch.dtype
) -> None:
    """Whatever the address of the first value: neighbours are stored together where it allows."""
    dtype = kernel.dtypes[0]
    pattern = block_pattern((32, 32))
    a, b_t = (torch.randn(rows, 64).to(dtype) for rows in pattern.shape)
    with emulated_gpu():
        plan = sddmm.plan(
            pattern, k=64, dtype=dtype, kernel=kernel.name, out_dtype=out_dtype, alpha=0.5
        )
        memory = at_a_cliff(torch.full((8 + offset + pattern.nnz,), 7, dtype=out_dtype))
        out = memory[8 + offset :]
        assert_close(plan.run(a, b_t.mT, out=out), pattern, a, b_t.mT, alpha=0.5)
    assert bool((memory[: 8 + offset] == 7).all())


@every_kernel
@pytest.mark.parametrize("blocksize", [(32, 32), (24, 40)])
def test_nan_and_infinities_reach_their_own_row_and_column_only(
    kernel: BlockKernel, blocksize: tuple[int, int]
) -> None:
    dtype = kernel.dtypes[0]
    pattern = block_pattern(blocksize)
    a, b_t = (torch.randn(rows, 40).to(dtype) for rows in pattern.shape)
    a[5, 3], a[-1, 39], b_t[2, 0], b_t[-1, 39] = torch.nan, torch.inf, -torch.inf, torch.nan
    with emulated_gpu():
        plan = sddmm.plan(pattern, k=40, dtype=dtype, kernel=kernel.name, out_dtype=torch.float32)
        values = plan.run(a, b_t.mT)
    assert_close(values, pattern, a, b_t.mT)
    assert int(values.isfinite().sum()) > pattern.nnz // 2


@pytest.mark.parametrize(
    ("dtype", "blocksize", "kernel"),
    [(torch.float16, (64, 64), "block_mma_64x64"), (torch.float32, (16, 16), "block_simt_16x16")],
)
def test_the_planner_takes_tiles_as_large_as_the_blocks(
    dtype: torch.dtype, blocksize: tuple[int, int], kernel: str
) -> None:
    plan, launches = check(None, block_pattern(blocksize, 30, 40), 64, dtype, out_dtype=dtype)
    assert launches[-1] == kernel
    assert f"kernel   {kernel}" in plan.explain()


@pytest.mark.parametrize(
    ("dtype", "blocksize"), [(torch.float16, (1, 1)), (torch.float64, (16, 16))]
)
def test_single_nonzeros_and_float64_are_gathered(
    dtype: torch.dtype, blocksize: tuple[int, int]
) -> None:
    _, launches = check(None, block_pattern(blocksize), 16, dtype, out_dtype=dtype)
    assert not any(name.startswith("block") for name in launches)


def test_the_explanation_names_the_other_kernels_and_their_reasons() -> None:
    pattern = block_pattern((64, 64))
    with emulated_gpu():
        text = sddmm.plan(pattern, k=64, dtype=torch.float16, backend="cuda").explain()
    assert "(BSR 64x64, int64 indices)" in text
    assert "  not    block_mma_16x16: " in text
    assert "  not    gathering each nonzero: " in text
    assert "  not    block_simt_64x64: computes float32, not float16" in text


def test_a_kernel_of_nonzeros_can_be_demanded_of_a_block_pattern() -> None:
    check("row_gather", block_pattern((16, 16)), 40, torch.float16)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"k": 2**31 - 1}, "counts k in 32 bits, beyond its end, got 2147483647"),
        ({"m": 2**31}, "counts m in 32 bits, got 2147483648"),
        ({"nnz": 2**47}, "counts tiles in 32 bits, got "),
    ],
)
@every_kernel
def test_sizes_beyond_32_bits_are_refused(
    kernel: BlockKernel, sizes: dict[str, int], reason: str
) -> None:
    problem = make_problem(block_pattern((64, 64)), k=64, dtype=kernel.dtypes[0])
    assert kernel.refuses(problem, H200) is None
    assert str(kernel.refuses(problem._replace(**sizes), H200)).startswith(reason)


def test_a_block_kernel_refuses_other_patterns_in_words() -> None:
    pattern = random_pattern(30, 20, 90)
    message = r"kernel 'block_mma_64x64' computes block patterns \(SparsePattern.from_bsr, torch BS"
    with emulated_gpu(), pytest.raises(ValueError, match=message):
        sddmm.plan(pattern, k=8, dtype=torch.float16, kernel="block_mma_64x64")


@pytest.mark.parametrize(
    ("crow", "col", "message"),
    [
        ([0, 2, 1, 3], [0, 1, 2], "crow_indices must never fall, got 2 then 1"),
        ([0, 1, 2, 4], [0, 1, 2], "crow_indices must end with the number of blocks = 3, got 4"),
        ([0, 1, 2, 3], [0, 4, 2], r"col_indices\[1\] is 4; valid .* 48x64 in blocks of 16x16"),
    ],
)
def test_indices_that_are_wrong_are_refused_in_words(
    crow: list[int], col: list[int], message: str
) -> None:
    pattern = SparsePattern.from_bsr(torch.tensor(crow), torch.tensor(col), (16, 16), (48, 64))
    with emulated_gpu(), pytest.raises(ValueError, match=message):
        sddmm.plan(pattern, k=64, dtype=torch.float16, backend="cuda")


def test_a_change_of_the_indices_in_place_is_noticed() -> None:
    pattern = block_pattern((16, 16))
    a, b = torch.randn(48, 32).half(), torch.randn(32, 64).half()
    with emulated_gpu() as launches:
        plan = sddmm.plan(pattern, k=32, dtype=torch.float16, out_dtype=torch.float32)
        for col in ([3, 0, 0, 2, 1], [1, 2, 3, 3, 0]):
            pattern.col_indices.copy_(torch.tensor(col))
            assert_close(plan.run(a, b), pattern, a, b)
    assert launches.count("block_mma_16x16") == 2


def test_no_index_of_a_nonzero_is_ever_made() -> None:
    pattern = block_pattern((64, 64))
    a, b_t = (torch.randn(rows, 32).half() for rows in pattern.shape)
    with emulated_gpu():
        sddmm.plan(pattern, k=32, dtype=torch.float16, backend="cuda").run(a, b_t.mT)
    assert total_bytes(memory_blocks(pattern)) < pattern.nnz
    assert pattern.row_ids.numel() == pattern.nnz
    assert total_bytes(memory_blocks(pattern)) > 8 * pattern.nnz


def test_a_pattern_is_freed_at_once_whatever_was_prepared_for_it() -> None:
    pattern = block_pattern((64, 64))
    with emulated_gpu():
        sddmm.plan(pattern, k=32, dtype=torch.float16, backend="cuda")
    alive = weakref.ref(pattern)
    gc.disable()
    try:
        del pattern
        assert alive() is None
    finally:
        gc.enable()
