"""Every method gives the values of the definition, or says why it does not serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import datasets
from experiments.bench.errors import ExperimentError
from experiments.bench.sources import Uniform
from experiments.sddmm.case import Case, make_case
from experiments.sddmm.config import Config
from experiments.sddmm.methods import METHODS, isratnisa, torch_float32, zcx
from experiments.sddmm.verify import Reference

CaseMaker = Callable[..., Case]


def case_of(
    rows: int, cols: int, nnz: int, k: int, dtype: str = "float32", device: str = "cpu"
) -> Case:
    source = Uniform(rows=rows, cols=cols, nnz=nnz)
    return make_case("test", Config(matrix=source, k=k, dtype=dtype, device=device))


# Methods that are a GPU kernel and nothing else, and what they say to a CPU.
ON_GPU_ONLY = {
    "zcx": "it is a GPU kernel",
    "cusparse": "cuSPARSE computes on a GPU, not on a CPU",
}


# It is for half operands that were float32 before.
CONVERTING = "torch_float32"


@pytest.mark.parametrize(
    "name", [name for name in METHODS.names() if name not in (*ON_GPU_ONLY, CONVERTING)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "size", [(50, 70, 400, 33), (1, 300, 40, 5), (300, 1, 40, 1), (9, 9, 0, 4)]
)
def test_each_method_is_right(name: str, dtype: str, size: tuple[int, int, int, int]) -> None:
    case = case_of(*size, dtype=dtype)
    method = METHODS.select([name])[name]
    assert method.refuses(case) is None
    values = method.prepare(case)()
    verdict = Reference(case).check(values)
    assert (verdict.checked, verdict.wrong) == (case.nnz, 0)


@pytest.mark.parametrize("name", METHODS.names())
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_right_or_refused(name: str, dtype: str) -> None:
    case = case_of(50, 70, 400, 33, dtype)
    method = METHODS.select([name])[name]
    reason = method.refuses(case)
    if name in ON_GPU_ONLY:
        assert reason == ON_GPU_ONLY[name]
    elif name in ("ours", "torch_dense"):
        assert reason is None
        values = method.prepare(case)()
        assert values.dtype == (torch.float32 if name == "ours" else case.a.dtype)
        assert Reference(case).check(values).wrong == 0
    else:
        assert reason is not None
        assert dtype in reason


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS.names())
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("k", [1, 33, 256, 500])
def test_each_method_is_right_on_a_gpu_or_refuses(name: str, dtype: str, k: int) -> None:
    method = METHODS.select([name])[name]
    for rows, cols, nnz in ((50, 70, 400), (1, 300, 40), (700, 60_000, 9000)):
        case = case_of(rows, cols, nnz, k, dtype, "cuda")
        reason = method.refuses(case)
        if reason is not None:
            assert name != "ours"
            assert dtype in reason or "CPU" in reason
            return
        verdict = Reference(case).check(method.prepare(case)())
        assert (verdict.checked, verdict.wrong) == (nnz, 0)


def test_zcx_groups_every_nonzero_by_its_tile() -> None:
    coo = datasets.uniform(50, 40, 300).tocoo()
    tiles, index, places, position = zcx.tile_index(coo.row, coo.col, 50, 40)
    assert sorted(position.tolist()) == list(range(300))
    tile = np.repeat(np.arange(len(tiles)), np.diff(index))
    assert np.array_equal(tiles[tile, 0] * 16 + places // 16, coo.row[position])
    assert np.array_equal(tiles[tile, 1] * 16 + places % 16, coo.col[position])
    assert (np.diff(index) > 0).all()


def test_a_dense_product_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.sddmm.methods import torch_dense

    monkeypatch.setattr("experiments.bench.memory.available_memory", lambda: 20_000)
    reason = torch_dense.refuses(case_of(50, 70, 400, 33))
    assert reason == "the dense product takes 14000 bytes, more than half of 20000 available"


def test_names_start_with_ours_and_the_published_baseline() -> None:
    assert METHODS.names()[:2] == ["ours", "isratnisa"]
    assert set(METHODS.names()) >= {"torch_csr", "torch_dense", "scipy_rows", "gather_einsum"}
    assert list(METHODS.select(["torch_csr", "ours"])) == ["ours", "torch_csr"]
    with pytest.raises(ExperimentError, match="unknown method 'foo'; choose from: ours, isratnisa"):
        METHODS.select(["foo"])


class TestPanels:
    """isratnisa's preparation: tile-major order, active rows, complete and partial panels."""

    def panels(self, m: int, n: int, nnz: int, tile: int, height: int) -> tuple:
        coo = datasets.uniform(m, n, nnz).tocoo()
        return isratnisa.build_panels(coo.row, coo.col, m, n, tile, height), coo

    @pytest.mark.parametrize(("tile", "height"), [(10, 4), (35, 1), (70, 192), (7, 3), (1000, 5)])
    def test_every_nonzero_is_in_one_panel_of_its_tile(self, tile: int, height: int) -> None:
        p, coo = self.panels(50, 70, 400, tile, height)
        assert sorted(p.position) == list(range(400))
        np.testing.assert_array_equal(p.cols, coo.col[p.position])
        assert (p.panel_begin[0], p.panel_begin[-1]) == (0, 400)
        for panel, t in enumerate(p.panel_tile):
            part = slice(p.panel_begin[panel], p.panel_begin[panel + 1])
            assert part.stop > part.start
            assert (p.cols[part] // tile == t).all()
            rows = p.active_rows[p.tile_begin[t] + p.local_row[part]]
            np.testing.assert_array_equal(rows, coo.row[p.position[part]])
            assert len(set(p.local_row[part] // height)) == 1
            order = rows.astype(np.int64) * 70 + p.cols[part]
            assert (np.diff(order) > 0).all()

    def test_panels_are_full_but_for_the_last_of_a_tile(self) -> None:
        p, _ = self.panels(50, 70, 400, 35, 4)
        for t in range(2):
            active = p.tile_begin[t + 1] - p.tile_begin[t]
            assert (p.panel_tile == t).sum() == -(-active // 4)

    def test_empty_rows_are_not_active(self) -> None:
        rows, cols = np.array([2, 2, 7], np.int32), np.array([0, 5, 3], np.int32)
        p = isratnisa.build_panels(rows, cols, 9, 6, 3, 2)
        assert p.active_rows.tolist() == [2, 2, 7]
        assert p.tile_begin.tolist() == [0, 1, 3]
        assert p.position.tolist() == [0, 1, 2]
        assert p.local_row.tolist() == [0, 0, 1]
        assert p.panel_begin.tolist() == [0, 1, 3]

    def test_no_nonzeros_and_tiles_that_divide(self) -> None:
        p, _ = self.panels(5, 6, 0, 3, 2)
        assert p.panel_begin.tolist() == [0]
        p, _ = self.panels(5, 6, 30, 3, 5)
        assert p.panel_tile.tolist() == [0, 1]


def test_torch_in_float32_converts_before_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first call has operands of float32, of the values that the halves have."""
    case = case_of(50, 70, 400, 33, "float16")
    assert torch_float32.refuses(case_of(50, 70, 400, 33)) == (
        "the operands are float32: this is method torch_csr"
    )
    assert torch_float32.refuses(replace(case, device="cuda")) is None
    run = torch_float32.public_call(case)
    monkeypatch.setattr(Tensor, "float", lambda self: pytest.fail("converted in the call"))
    values = run()
    assert (values.dtype, Reference(case).check(values).wrong) == (torch.float32, 0)
