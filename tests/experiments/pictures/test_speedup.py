"""Speed-ups are drawn over any reference, with their spread, and the same records draw the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest

from experiments.bench.errors import ExperimentError
from experiments.gemm.objective import GEMM
from experiments.pictures.methods import LOOKS, looks
from experiments.sddmm.objective import SDDMM
from experiments.sddmm.record import Record
from experiments.spmm.objective import SPMM
from experiments.training.objective import TRAINING
from tests.experiments.records import record

pytest.importorskip("matplotlib")

from experiments.pictures.figures import figures
from experiments.pictures.picture import Picture

K_16, K_64 = 16.0, 64.0


def picture(name: str, records: Sequence[Record], reference: str = "") -> Picture:
    (shown,) = figures(SDDMM, records, reference, names=[name])
    return shown


def two_sizes(*methods: tuple[str, float]) -> list[Record]:
    """Each method on two matrices and at two K, on the second matrix four times as slow."""
    return [
        record(name, ms * slower, k=k, nnz=nnz, key=f"{name}{k}{nnz}")
        for name, ms in methods
        for nnz, slower in ((10, 1.0), (50, 1.0 if name == "ours" else 4.0))
        for k in (16, 64)
    ]


def drawn(shown: Picture, name: str) -> list[tuple[float, list[float]]]:
    """The marks of a method: K, to one digit, as marks are set apart; then the speed-ups."""
    assert shown.figure is not None
    (ax,) = shown.figure.axes
    (line,) = [line for line in ax.lines if line.get_marker() == LOOKS[name].marker]
    spans = {
        round(float(low[0]), 6): [float(low[1]), float(high[1])]
        for collection in ax.collections
        for low, high in collection.get_segments()
    }
    return [
        (2.0 ** round(math.log2(x)), [float(y), *spans[round(float(x), 6)]])
        for x, y in zip(*line.get_data(), strict=True)
    ]


def test_a_mark_is_the_geometric_mean_and_its_whisker_the_whole_spread() -> None:
    records = two_sizes(("ours", 1.0), ("cusparse", 2.0), ("torch_csr", 8.0))
    shown = picture("speedup_over_k", records)
    expected = [pytest.approx(value) for value in (4.0, 2.0, 8.0)]
    assert drawn(shown, "ours") == [(K_16, expected), (K_64, expected)]
    quarter = [pytest.approx(0.25)] * 3
    assert drawn(shown, "torch_csr") == [(K_16, quarter), (K_64, quarter)]
    assert "whisker reaches from the least to the greatest" in shown.caption
    assert "a CPU, 2 threads; commit not recorded, measured" in shown.caption


def test_any_method_may_be_the_reference() -> None:
    records = two_sizes(("ours", 1.0), ("cusparse", 2.0), ("torch_csr", 8.0))
    shown = picture("speedup_over_k", records, "torch_csr")
    assert drawn(shown, "cusparse")[0][1] == [pytest.approx(4.0)] * 3
    assert shown.title == "Speed-up over torch_csr, by K"
    message = "reference must be one of ours, cusparse, torch_csr, got 'isratnisa'"
    with pytest.raises(ExperimentError, match=message):
        figures(SDDMM, records, "isratnisa")


def test_what_cannot_be_drawn_is_said() -> None:
    one_k = [record("ours", 1.0), record("cusparse", 2.0), record("zcx", None)]
    assert picture("speedup_over_k", one_k).caption == "all cases have K = 8"
    alone = picture("speedup_over_nnz", [record("ours", 1.0), record("ours", 1.0, nnz=9)])
    assert (alone.figure, alone.caption) == (
        None,
        "no case has times of two methods, one of them a peer",
    )
    with_zero = [
        *two_sizes(("ours", 1.0), ("cusparse", 2.0)),
        record("zcx", 1.0, k=64, samples_ms=[0.0]),
    ]
    assert "Not drawn: 1 have a time of 0" in picture("speedup_over_k", with_zero).caption
    assert "no rung has a time" in {p.caption for p in figures(GEMM, [])}


def test_every_place_has_a_panel_of_its_own() -> None:
    records = [
        record(
            method, ms, k=k, key=f"{method}{device}{k}",
            environment={"device": device, "threads": 2},
        )
        for device in ("one CPU", "another CPU")
        for k in (16, 64)
        for method, ms in (("ours", 1.0), ("isratnisa", 4.0))
    ]  # fmt: skip
    shown = picture("speedup_over_k", records)
    assert shown.figure is not None
    titles = [ax.get_title() for ax in shown.figure.axes]
    assert titles == [
        "one CPU, 2 threads\n10x10, float32",
        "another CPU, 2 threads\n10x10, float32",
    ]


def test_every_method_has_a_look_of_its_own_in_all_pictures() -> None:
    for objective in (SDDMM, SPMM, TRAINING):
        names = list(objective.names())
        assert set(names) <= set(LOOKS), (
            "a new method needs a line in experiments/pictures/methods.py"
        )
        assert len(set(looks(names).values())) == len(names)
    strangers = looks([f"method_{i}" for i in range(20)])
    assert len(set(strangers.values()) | set(LOOKS.values())) == 20 + len(set(LOOKS.values()))


def test_the_same_records_give_the_same_small_svg() -> None:
    records = two_sizes(("ours", 1.0), ("cusparse", 2.0))
    once, again = (picture("speedup_over_k", records).svg() for _ in range(2))
    assert once == again
    texts = {e.text for e in ElementTree.fromstring(once).iter() if e.tag.endswith("text")}
    assert {"16", "64", "ours", "Speed-up over the fastest peer, by K"} <= texts
    assert len(once) < 20_000
    assert "matplotlib" not in once  # its release, which would change the file
