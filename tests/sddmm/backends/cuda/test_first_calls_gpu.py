"""First calls with CSR tensors of long rows: right, the same bits again, and wrong ones refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sddmm
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.column_runs.host import looks_like_mask
from sddmm.backends.cuda.kernels.gather_rows import host as gather_rows
from sddmm.dtypes import DTYPES
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import assert_close
from tests.sddmm.backends.cuda.tiled_runs import choose_tiles, mask

pytestmark = pytest.mark.gpu

N = 3000
ROW_LENGTHS = {
    "even": lambda: torch.full((4000,), 300),
    "triangle": lambda: torch.arange(3000),
    "skewed": lambda: (20_000 / torch.arange(1, 4001)).long() + 60,
    "one row": lambda: torch.tensor([0, 900_000, 0]),
    "few rows": lambda: torch.tensor([100_000, 0, 7, 200_000, 1]),
}


def csr_tensor(lengths: Tensor, index_dtype: torch.dtype) -> Tensor:
    """Columns in no order, so duplicates too."""
    crow = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    cols = torch.randint(0, N, (int(crow[-1]),))
    indices = (x.to("cuda", index_dtype) for x in (crow, cols))
    values, shape = torch.randn(len(cols), device="cuda"), (len(lengths), N)
    return torch.sparse_csr_tensor(*indices, values, shape, check_invariants=False)


def like(matrix: Tensor) -> Tensor:
    """The matrix by tensors that nothing has seen."""
    indices = matrix.crow_indices().clone(), matrix.col_indices().clone()
    return torch.sparse_csr_tensor(*indices, matrix.values(), matrix.shape, check_invariants=False)


@pytest.mark.parametrize("k", [16, 96, 100, 192, 300])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("case", ROW_LENGTHS)
def test_long_rows_of_any_lengths(
    case: str, index_dtype: torch.dtype, dtype: torch.dtype, k: int
) -> None:
    matrix = csr_tensor(ROW_LENGTHS[case](), index_dtype)
    a = torch.randn(matrix.shape[0], k, device="cuda").to(dtype)
    b = torch.randn(N, k, device="cuda").to(dtype).mT
    out_dtype = torch.promote_types(dtype, torch.float32)
    first, again = (
        sddmm.sddmm(like(matrix), a, b, alpha=-0.5, scale=False, out_dtype=out_dtype).values()
        for _ in range(2)
    )
    assert first.dtype == out_dtype
    assert_close(first, matrix, a, b, alpha=-0.5, scale=False)
    assert torch.equal(first, again)


@pytest.mark.parametrize("case", ["even", "skewed"])
def test_heads_weights_and_misaligned_rows(case: str) -> None:
    matrix = csr_tensor(ROW_LENGTHS[case](), torch.int32).half()
    a = torch.randn(3, matrix.shape[0], 65, device="cuda").half()[..., 1:]
    b = torch.randn(3, N, 64, device="cuda").half().mT
    values = sddmm.sddmm(matrix, a, b, scale=True)
    assert_close(values, matrix, a, b, scale=True)


@pytest.mark.parametrize("at", [0, 700_001, -1])
def test_a_wrong_index_among_many_is_refused(at: int) -> None:
    matrix = csr_tensor(ROW_LENGTHS["even"](), torch.int32)
    a, b = torch.randn(4000, 64, device="cuda"), torch.randn(N, 64, device="cuda").mT
    right = sddmm.sddmm(like(matrix), a, b)
    for indices in ("crow_indices", "col_indices"):
        wrong = like(matrix)
        changed = getattr(wrong, indices)()
        changed[at if abs(at) < len(changed) else len(changed) // 2] = 2**31 - 1
        with pytest.raises(ValueError, match=indices):
            sddmm.sddmm(wrong, a, b)
        assert torch.equal(sddmm.sddmm(like(matrix), a, b).values(), right.values())


def test_these_patterns_are_gathered_by_rows() -> None:
    """Else this file would test another kernel."""
    for lengths in ROW_LENGTHS.values():
        assert int(lengths().sum()) >= gather_rows.LONG_ROW * len(lengths())


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    "name",
    [
        "tile_mma_64x64x32", "tile_mma_128x128x64", "tile_wmma_m16n16k16", "tile_wgmma_128x256x64",
        "tile_wgmma_256x152x64", "tile_wgmma_async_128x256x64", "tile_simt_64x64x16",
        "tile_simt_16x32x32",
    ],
)  # fmt: skip
def test_a_narrow_mask_is_computed_by_the_tiles_that_it_has(
    name: str, index_dtype: torch.dtype, heads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another mask each time: what one call has listed is not for the next."""
    choose_tiles(monkeypatch, name, lists_tiles=True)
    dtype = torch.float32 if "simt" in name else torch.float16
    lead = () if heads is None else (heads,)
    a = torch.randn(*lead, 3001, 72, device="cuda").to(dtype)
    b = torch.randn(*lead, 5003, 72, device="cuda").to(dtype).mT
    for reach in (100, 1, 700, 0):
        pattern = mask(3001, 5003, reach).to("cuda")
        crow, cols = (x.to(index_dtype) for x in (pattern.crow_indices, pattern.col_indices))
        values = torch.ones(pattern.nnz, device="cuda", dtype=dtype)
        matrix = torch.sparse_csr_tensor(crow, cols, values, (3001, 5003), check_invariants=False)
        first, again = (sddmm.sddmm(like(matrix), a, b, scale=False) for _ in range(2))
        first, again = (x if heads else x.values() for x in (first, again))
        assert_close(first, matrix, a, b, scale=False)
        assert torch.equal(first, again)


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("k", [72, 65])
@pytest.mark.parametrize(
    "name", ["tile_mma_64x64x32", "tile_mma_128x128x64", "tile_simt_64x64x16", "tile_simt_16x32x32",
             "tile_simt_128x128x8", "tile_simt_sliced_64x64x16"],
)  # fmt: skip
def test_tiles_that_the_host_does_not_wait_for(
    name: str, k: int, index_dtype: torch.dtype, heads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patterns in turn: dense, a mask, with columns that fall, with wrong ones, dense again."""
    choose_tiles(monkeypatch, name)
    dtype = torch.float32 if "simt" in name else torch.float16
    lead, (m, n) = () if heads is None else (heads,), (701, 1003)
    a = torch.randn(*lead, m, k, device="cuda").to(dtype)
    b = torch.randn(*lead, n, k, device="cuda").to(dtype).mT
    dense = SparsePattern.from_torch(torch.rand(m, n) < 0.3).to_csr()
    falling = SparsePattern.from_csr(dense.crow_indices, n - 1 - dense.col_indices, (m, n))
    for pattern in (dense, mask(m, n, 100), falling, dense):
        crow, cols = (
            x.to("cuda", index_dtype) for x in (pattern.crow_indices, pattern.col_indices)
        )
        values = torch.ones(pattern.nnz, device="cuda", dtype=dtype)
        matrix = torch.sparse_csr_tensor(crow, cols, values, (m, n), check_invariants=False)
        first, again = (sddmm.sddmm(like(matrix), a, b, scale=False) for _ in range(2))
        first, again = (x if heads else x.values() for x in (first, again))
        assert_close(first, matrix, a, b, scale=False)
        assert torch.equal(first, again)
        for indices in ("crow_indices", "col_indices"):
            wrong = like(matrix)
            getattr(wrong, indices)()[m // 2] = 2**31 - 1
            with pytest.raises(ValueError, match=indices):
                sddmm.sddmm(wrong, a, b)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_a_look_at_a_few_columns_knows_a_mask(index_dtype: torch.dtype) -> None:
    device = loader.runtime.device(0)
    near = mask(3000, 5000, 100).to("cuda").col_indices.to(index_dtype)
    for _ in range(3):
        assert looks_like_mask(device, near)
        assert not looks_like_mask(device, near.flip(0))
        assert not looks_like_mask(device, near[::2].contiguous())
