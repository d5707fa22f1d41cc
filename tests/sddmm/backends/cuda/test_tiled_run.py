"""First calls by tiles, without a plan. The kernels run on the CPU."""

from __future__ import annotations

import logging
from typing import Any
from unittest import mock

import pytest
import torch

import sddmm
from gemm_core.emulation.kernel import missing_compiler
from sddmm.backends.cuda import loader, single_run, tile_costs, tiled_run
from sddmm.backends.cuda.kernels import tile
from sddmm.backends.cuda.kernels.tile import BlockTileKernel
from sddmm.backends.cuda.one_off import OneOffPlanner
from sddmm.memory import new_memory
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import assert_close, emulated_gpu, random_pattern
from tests.sddmm.backends.cuda.tiled_runs import (
    BLOCK,
    PERSISTENT,
    K,
    M,
    N,
    choose_tiles,
    gathering_takes_long,
    mask,
    new_tensor,
    operands,
    scattered,
)

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")

AT_ONCE, WHEN_CHECKED = 10**6, 0


@pytest.fixture(params=[AT_ONCE, WHEN_CHECKED], ids=["at once", "when checked"])
def most_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """When tiles are launched: before the host knows that a pattern is right, or after."""
    most: int = request.param
    monkeypatch.setattr(tile_costs, "MOST_AT_ONCE", most)
    return most


def memory_of_far_offsets(what: str, shape: Any, *options: Any) -> torch.Tensor:
    """Offsets among which a kernel that read them would find nonzeros far outside the pattern."""
    memory = new_memory(what, shape, *options)
    return memory.copy_((torch.arange(memory.numel()) * 1_000_003) % 2**31)


@pytest.mark.parametrize("kind", ["int32", "int64", "coo"])
@pytest.mark.parametrize("pattern", [mask(), scattered()], ids=["runs", "scattered"])
@pytest.mark.parametrize("name", [BLOCK, PERSISTENT])
@pytest.mark.usefixtures("most_at_once")
def test_every_nonzero_is_computed_without_a_plan(
    name: str, pattern: SparsePattern, kind: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    choose_tiles(monkeypatch, name)
    caplog.set_level(logging.DEBUG, "sddmm")
    index_dtype = torch.int64 if kind == "int64" else torch.int32
    S = new_tensor(pattern, index_dtype, "coo" if kind == "coo" else "csr")
    a, b = operands()
    with emulated_gpu() as launches:
        product = sddmm.sddmm(S, a, b, scale=False)
        logged = caplog.text
    assert launches == ["analyse", name]
    assert_close(product.values(), S, a, b, scale=False)
    assert "without a plan" in logged
    assert "run(s) of" not in logged


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("k", [40, 37])
@pytest.mark.parametrize("name", [BLOCK, PERSISTENT])
@pytest.mark.usefixtures("most_at_once")
def test_values_heads_and_unaligned_rows_are_served(
    name: str, k: int, heads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_tiles(monkeypatch, name)
    S = new_tensor(mask())
    a, b = operands(k=k, heads=heads)
    with emulated_gpu() as launches:
        product = sddmm.sddmm(S, a, b, alpha=-0.5, scale=True)
    assert launches[:2] == ["analyse", name]
    values = product if heads else product.values()
    assert_close(values, S, a, b, alpha=-0.5, scale=True)


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("name", [BLOCK, PERSISTENT])
def test_rows_and_heads_of_operands_may_lie_apart(
    name: str, heads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_tiles(monkeypatch, name)
    S, lead = new_tensor(mask()), () if heads is None else (heads,)
    a = torch.randn(*lead, M + 3, K + 24).half()[..., :M, :K]
    b = torch.randn(*lead, N + 5, K + 8).half()[..., :N, :K].mT
    with emulated_gpu() as launches:
        product = sddmm.sddmm(S, a, b, scale=False)
    assert launches == ["analyse", name]
    assert_close(product if heads else product.values(), S, a, b, scale=False)


def test_rows_beyond_32_bit_offsets_are_copied_by_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those that are 2^24 bytes apart."""
    choose_tiles(monkeypatch, BLOCK)
    near = torch.randn(2, K).half()
    far = torch.empty(2, 2**23, dtype=torch.float16)[:, :K].copy_(near)
    cols = torch.tensor([0, 1, 1])
    plan = mock.Mock(wraps=OneOffPlanner.prepare)
    monkeypatch.setattr(OneOffPlanner, "prepare", lambda *args: plan(*args))
    for a, plans in ((near, 0), (far, 1)):
        S = torch.sparse_csr_tensor(torch.tensor([0, 2, 3]), cols, torch.ones(3).half(), (2, 2))
        with emulated_gpu() as launches:
            product = sddmm.sddmm(S, a, near.mT)
        assert launches == ["analyse", BLOCK]
        assert plan.call_count == plans
        assert_close(product.values(), S, near, near.mT)


@pytest.mark.parametrize(("pattern", "is_mask"), [(mask(), True), (scattered(), False)])
def test_rows_of_a_mask_are_stored_as_segments_once_it_is_known(
    pattern: SparsePattern, is_mask: bool, most_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_tiles(monkeypatch, BLOCK)
    stored: list[bool] = []

    def noted(*args: Any) -> tile.RowStoring:
        storing = row_storing(*args)
        stored.append(storing.segments)
        return storing

    row_storing = tile.row_storing
    monkeypatch.setattr(tile, "row_storing", noted)
    with emulated_gpu():
        sddmm.sddmm(new_tensor(pattern), *operands())
    assert stored == ([is_mask] if most_at_once == WHEN_CHECKED else [])


@pytest.mark.parametrize("k", [40, 37])
def test_a_kernel_without_straight_code_of_its_own_makes_a_plan(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_tiles(monkeypatch, BLOCK)
    monkeypatch.setattr(tile_costs, "MOST_AT_ONCE", 0)
    monkeypatch.delattr(BlockTileKernel, "once")
    S, (a, b) = new_tensor(mask()), operands(k=k)
    with emulated_gpu() as launches:
        product = sddmm.sddmm(S, a, b)
    assert launches == ["analyse", BLOCK]
    assert_close(product.values(), S, a, b)


def test_columns_that_fall_are_gathered(most_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_tiles(monkeypatch, BLOCK)
    monkeypatch.setattr(single_run, "new_memory", memory_of_far_offsets)
    at_once = [BLOCK] if most_at_once == AT_ONCE else []
    near = mask()
    falling = SparsePattern.from_csr(near.crow_indices, N - 1 - near.col_indices, (M, N))
    a, b = operands()
    for S, gathered in (
        (new_tensor(falling), ["gather_rows"]),
        (new_tensor(falling, layout="coo"), ["analyse", "row_gather"]),
        (falling, ["analyse", "row_gather"]),
    ):
        with emulated_gpu() as launches:
            product = sddmm.sddmm(S, a, b)
        assert launches == ["analyse", *at_once, *gathered]
        assert_close(product if S is falling else product.values(), S, a, b)


def test_a_pattern_that_is_kept_keeps_its_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_tiles(monkeypatch, BLOCK)
    pattern, (a, b) = mask(), operands()
    with emulated_gpu() as launches:
        assert_close(sddmm.sddmm(pattern, a, b), pattern, a, b)
        again = sddmm.sddmm(pattern, a, b, out_dtype=torch.float32)
    assert launches == ["analyse", BLOCK, BLOCK]
    assert_close(again, pattern, a, b)


@pytest.mark.parametrize(
    ("most_at_once", "step"),
    [(AT_ONCE, "invalid_by_last"), (WHEN_CHECKED, "every_tile"), (WHEN_CHECKED, "address")],
    indirect=["most_at_once"],
)
@pytest.mark.usefixtures("most_at_once")
def test_an_interrupted_call_leaves_nothing_to_the_next(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the GPU analyses, and before the tiles are launched."""
    choose_tiles(monkeypatch, BLOCK)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    a, b = operands()
    with emulated_gpu() as launches:
        with monkeypatch.context() as interrupted:
            interrupted.setattr(tiled_run, step, interrupt)
            with pytest.raises(KeyboardInterrupt):
                sddmm.sddmm(new_tensor(mask()), a, b)
        assert launches == ["analyse"]
        S = new_tensor(scattered())
        assert_close(sddmm.sddmm(S, a, b).values(), S, a, b)


@pytest.mark.parametrize(
    ("crow", "col", "message"),
    [([0, 4, 2, 6], 1, "crow_indices"), ([0, 2, 4, 6], N, f"is {N}"), ([0, 2, 4, 6], -1, "is -1")],
)
def test_a_wrong_pattern_raises_and_the_next_one_is_computed(
    crow: list[int], col: int, message: str, most_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_tiles(monkeypatch, BLOCK)
    monkeypatch.setattr(single_run, "new_memory", memory_of_far_offsets)
    a, b = torch.randn(3, K).half(), torch.randn(N, K).half().mT
    for is_wrong in (True, False, True):
        offsets = torch.tensor(crow if is_wrong else [0, 2, 4, 6])
        cols = torch.tensor([0, 3, 1, 4, 2, col if is_wrong else 3])
        S = torch.sparse_csr_tensor(
            offsets, cols, torch.randn(6).half(), (3, N), check_invariants=False
        )
        with emulated_gpu() as launches:
            if is_wrong:
                with pytest.raises(ValueError, match=message):
                    sddmm.sddmm(S, a, b)
            else:
                assert_close(sddmm.sddmm(S, a, b).values(), S, a, b)
        by_tiles = [] if is_wrong and most_at_once == WHEN_CHECKED else [BLOCK]
        assert launches == ["analyse", *by_tiles]


def test_a_call_on_another_stream_waits_for_tiles_that_look_at_the_analysis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its analysis, of a wrong pattern maybe, would tell them that theirs is wrong."""
    choose_tiles(monkeypatch, BLOCK)
    a, b = operands()
    with emulated_gpu():
        waits = mock.Mock()
        monkeypatch.setattr(loader.runtime, "synchronize", waits)
        for stream, expected in ((1, 0), (1, 0), (2, 1), (2, 1), (1, 2)):
            monkeypatch.setattr(loader.runtime, "current_stream", lambda _, s=stream: s)
            S = new_tensor(mask())
            assert_close(sddmm.sddmm(S, a, b).values(), S, a, b)
            assert waits.call_count == expected


def test_a_look_at_columns_that_are_wrong_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gathering_takes_long(monkeypatch)
    choose_tiles(monkeypatch, BLOCK, is_late=True, is_probed=True)
    wrong = mask()
    wrong.col_indices[::2] = 2**31 - 1
    with emulated_gpu() as launches, pytest.raises(ValueError, match="col_indices"):
        sddmm.sddmm(new_tensor(wrong), *operands())
    assert launches[0] == "column_runs"


def test_offsets_that_do_not_fit_are_told_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_tiles(monkeypatch, BLOCK)
    S, (a, b), empty = new_tensor(mask()), operands(), torch.empty
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 20))

    def full(*size: object, dtype: torch.dtype, **options: object) -> torch.Tensor:
        if dtype == torch.int32:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty(*size, dtype=dtype, **options)  # type: ignore[call-overload, no-any-return]

    with emulated_gpu():
        monkeypatch.setattr(torch, "empty", full)
        with pytest.raises(torch.OutOfMemoryError, match=r"1792 row offsets of tiles needs 7168"):
            sddmm.sddmm(S, a, b)


@pytest.mark.parametrize("is_kept", [False, True])
def test_the_analysis_decides_between_tiles_and_gathering(
    is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathering_takes_long(monkeypatch)
    choose_tiles(monkeypatch, BLOCK, is_late=True)
    near, far = mask(), random_pattern(M, N, 200, layout="csr")
    falling = SparsePattern.from_csr(near.crow_indices, N - 1 - near.col_indices, (M, N))
    a, b = operands()
    # Rows of the pattern whose columns fall are long: a kernel that finds them serves it at once.
    expected = BLOCK, "row_gather", "row_gather" if is_kept else "gather_rows"
    for pattern, name in zip((near, far, falling), expected, strict=True):
        S = pattern if is_kept else new_tensor(pattern)
        with emulated_gpu() as launches:
            product = sddmm.sddmm(S, a, b)
        assert launches == ["analyse", name]
        assert_close(product if is_kept else product.values(), S, a, b)


def test_scattered_nonzeros_of_long_rows_are_gathered_after_a_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are not analysed then."""
    gathering_takes_long(monkeypatch)
    choose_tiles(monkeypatch, BLOCK, is_late=True, is_probed=True)
    far = SparsePattern.from_torch(torch.rand(M, N) < 0.4).to_csr()
    a, b = operands()
    for pattern, expected in ((mask(), ["analyse", BLOCK]), (far, ["gather_rows"])):
        S = new_tensor(pattern)
        with emulated_gpu() as launches:
            product = sddmm.sddmm(S, a, b)
        assert launches == ["column_runs", *expected]
        assert_close(product.values(), S, a, b)
