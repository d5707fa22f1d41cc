"""The pictures of studies, limits, preparations, first calls and the ladder say what is true."""

from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.gemm.objective import GEMM
from experiments.pictures.methods import LOOKS
from experiments.sddmm.objective import SDDMM
from experiments.training.objective import TRAINING
from sddmm.backends.cuda import device_model
from tests.experiments.gemm.test_gemm import gemm_record
from tests.experiments.records import record

pytest.importorskip("matplotlib")

from experiments.pictures import calls, roofline
from experiments.pictures.figures import figures
from experiments.pictures.picture import Picture


def only(name: str, records: list, objective=SDDMM, reference: str = "") -> Picture:  # type: ignore[no-untyped-def]
    (shown,) = figures(objective, records, reference, names=[name])
    return shown


def marks(shown: Picture, method: str, panel: int = 0) -> list[tuple[float, float]]:
    assert shown.figure is not None
    found = []
    for line in shown.figure.axes[panel].lines:
        look = LOOKS[method]
        if (line.get_marker(), line.get_color()) == (look.marker, look.color):
            found += zip(*map(np.asarray, line.get_data()), strict=True)
    return [(float(x), float(y)) for x, y in found]


def test_a_preparation_pays_once_it_has_taken_no_more_than_the_calls_saved() -> None:
    """Samples of 1.0, 2.0 and 3.0 ms have a median of 2 ms; a preparation takes 1.5 ms."""
    ours, slow = record("ours", 1.0), record("cusparse", 1.25)
    assert calls.calls_until_paid(ours, slow) == 3  # 1.5 ms over 0.5 ms
    assert calls.calls_until_paid(ours, record("cusparse", 1.2)) == 4  # 3.75
    assert calls.calls_until_paid(ours, record("cusparse", 8.0)) == 1
    assert calls.calls_until_paid(slow, ours) == math.inf
    unprepared = record("zcx", 9.0, prepare_ms=None)
    shown = only(calls.NAME, [ours, slow, unprepared])
    assert marks(shown, "ours") == [(50, 3)]
    ((_, never),) = marks(shown, "cusparse")  # against zcx: 1.5 ms over 15.5 ms
    assert never == 1
    assert "1 records whose preparation was not timed" in shown.caption
    assert "Never (1 of 1)" in only(calls.NAME, [ours, slow], reference="ours").caption


def test_the_limits_are_those_of_the_device_model_and_of_an_h200_only() -> None:
    assert roofline.gather_gflops("float16", device_model.H200_L2_BYTES) == pytest.approx(9100)
    assert roofline.tensor_gflops(0.01) == pytest.approx(8660)
    on_gpu = {"environment": {"device": "NVIDIA H200", "gpu": {"cuda": "13"}}, "dtype": "float16"}
    pair = [("ours", 1.0), ("cusparse", 2.0)]
    shown = only(roofline.NAME, [record(name, ms, **on_gpu) for name, ms in pair])
    assert shown.figure is not None
    heights = {float(line.get_ydata()[0]) for line in shown.figure.axes[0].lines}
    for rate in (device_model.H200_L2_BYTES, device_model.H200_MEMORY_BYTES):
        assert roofline.gather_gflops("float16", rate) in heights
    ((density, gflops),) = marks(shown, "ours")
    assert (density, gflops) == (0.5, pytest.approx(2e-6 * 50 * 8 / 2))
    elsewhere = only(roofline.NAME, [record(name, ms) for name, ms in pair])
    assert "No limits" in elsewhere.caption
    assert elsewhere.figure is not None
    assert len(elsewhere.figure.axes[0].lines) == 2


def test_a_training_step_is_three_products() -> None:
    assert TRAINING.products == 3
    assert SDDMM.products == 1


def test_a_first_call_stands_over_its_kernel_and_one_that_was_not_timed_is_counted() -> None:
    records = [record("ours", 1.0), record("cusparse", 2.0, first_call_ms=[])]
    shown = only("first_call", records)
    assert marks(shown, "ours") == [(2000, 3000)]
    assert marks(shown, "cusparse") == []
    assert "1 records without a first call" in shown.caption
    nothing = only("first_call", records[1:])
    assert (nothing.figure, nothing.caption) == (None, "no record has the time of a first call")


def test_few_cases_have_a_bar_each_and_one_that_is_lost_is_hatched() -> None:
    records = [
        *(record("ours", 1.0), record("isratnisa", 4.0), record("cusparse", 2.0)),
        *(record("ours", 3.0, k=16), record("cusparse", 2.0, k=16)),
    ]
    shown = only("speedup", records)
    assert shown.figure is not None
    (ax,) = shown.figure.axes
    assert [(bar.get_width(), bar.get_hatch()) for bar in ax.patches] == [
        (pytest.approx(1.0), None),
        (pytest.approx(2 / 3 - 1), "////"),
    ]
    assert [text.get_text() for text in ax.texts] == ["2.00x  cusparse", "0.67x  cusparse"]
    named = only("speedup", records[:3], reference="isratnisa")
    assert "re-implemented by us from a description" in named.caption
    assert named.title == "Speed-up of ours over isratnisa"


def test_classes_have_a_row_each_with_first_calls_and_the_regret_of_the_choice() -> None:
    study = [("tiny", 1.0, 3.0), ("tiny", 1.0, 12.0), ("rmat", 4.0, 2.0)]
    records = [
        one
        for index, (family, ours_ms, peer_ms) in enumerate(study)
        for one in (
            record("ours", ours_ms, family=family, kernel="windows", seed=index),
            record("cusparse", peer_ms, family=family, seed=index),
            record("windows", ours_ms / 2, family=family, kernel="windows", seed=index),
        )
    ]
    shown = only("speedup", records)
    assert shown.figure is not None
    kernels, first_calls, regret = shown.figure.axes
    assert [label.get_text() for label in kernels.get_yticklabels()] == ["tiny (2)", "rmat (1)"]
    (means,) = [line for line in kernels.lines if line.get_marker() == "|"]
    assert list(means.get_xdata()) == [pytest.approx(6.0), pytest.approx(0.5)]
    assert {x for x, _ in marks(shown, "cusparse", panel=1)} == {5 / 3, 14 / 3, 4 / 6}
    assert [x for x, _ in marks(shown, "ours", panel=2)] == [pytest.approx(2.0)] * 3
    assert "in the panel of regret" in shown.caption
    assert first_calls.get_xlabel().startswith("first call")
    assert regret.get_xlabel().startswith("regret")


def test_the_ladder_shows_the_rungs_that_climb() -> None:
    climb = [("hgemm_naive", 8.0), ("wmma_mma4x2", 4.0), ("wmma_mma4x2_warp2x4", 5.0)]
    records = [gemm_record("cublas", 1.0), *(gemm_record(name, ms) for name, ms in climb)]
    shown = only("ladder", records, GEMM)
    assert shown.figure is not None
    (ax,) = shown.figure.axes
    rows = [label.get_text() for label in ax.get_yticklabels()]
    assert rows == ["hgemm_naive", "wmma_mma4x2", "cublas"]
    assert [text.get_text() for text in ax.texts] == ["0.125 (12%)", "0.25 (25%)", "1"]
    assert "Of 3 rungs measured, the 2 that were faster by 3% or more" in shown.caption


def test_the_ladder_is_drawn_where_most_rungs_are_measured() -> None:
    """A larger square of two rungs and gemm's choice is not the ladder's."""
    few = {"m": 4000, "n": 4000, "k": 4000}
    records = [
        gemm_record("cublas", 1.0),
        gemm_record("hgemm_naive", 8.0, kernel="hgemm_naive"),
        gemm_record("cublas", 0.5, "two"),
        gemm_record("wgmma_roles", 1.0, "two", kernel="wgmma_roles"),
        gemm_record("gemm", 0.9, "two", kernel="wgmma_roles"),
        gemm_record("cublas", 1.0, "large", **few),
        gemm_record("wgmma_roles", 1.0, "large", **few),
    ]
    shown = only("ladder", records, GEMM)
    assert shown.figure is not None
    (ax,) = shown.figure.axes
    rows = [label.get_text() for label in ax.get_yticklabels()]
    assert rows == ["hgemm_naive", "wgmma_roles", "cublas"]
    # The second rung is compared with the cuBLAS of its own session.
    assert [text.get_text() for text in ax.texts] == ["0.125 (12%)", "1 (50%)", "2"]


def test_the_climb_shows_every_rung_of_halves_and_both_layouts_of_b() -> None:
    rungs = {"hgemm_naive": 8.0, "wmma_mma4x2": 4.0, "mma_64x64x32_stage3": 5.0}
    newest = "wgmma_128x128x64_stage3"
    records = [
        gemm_record("cublas", 1.0),
        *(gemm_record(name, ms) for name, ms in rungs.items()),
        gemm_record("cublas", 2.0, "new"),
        gemm_record(newest, 4.0, "new", kernel=newest),
        gemm_record("gemm", 2.0, "new", kernel=newest),
        gemm_record("cublas", 1.0, "n", b_rows="n"),
        gemm_record("hgemm_naive", 2.0, "n", b_rows="n"),
        gemm_record("cublas", 1.0, dtype="float32"),
        gemm_record("sgemm_naive", 9.0, dtype="float32"),
    ]
    shown = only("climb", records, GEMM)
    assert shown.figure is not None
    (ax,) = shown.figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == [*rungs, newest]
    drawn = [line for line in ax.lines if line.get_marker() != "None"]
    full = [line.get_xdata()[0] for line in drawn if line.get_markerfacecolor() != "white"]
    assert full == pytest.approx([1 / 8, 1 / 4, 1 / 5, 2 / 4])
    (hollow,) = [line for line in drawn if line.get_markerfacecolor() == "white"]
    assert (hollow.get_xdata()[0], hollow.get_ydata()[0]) == (pytest.approx(1 / 2), 0)
    assert [text.get_text() for text in ax.texts] == ["12%", "25%", "50%"]
    families = [text.get_text() for text in shown.figure.legends[0].get_texts()]
    assert families == ["CUDA cores", "WMMA", "mma.sync", "wgmma"]


def test_without_rungs_of_halves_there_is_no_climb() -> None:
    records = [gemm_record(name, 1.0, dtype="float32") for name in ("cublas", "sgemm_naive")]
    assert only("climb", records, GEMM).figure is None
