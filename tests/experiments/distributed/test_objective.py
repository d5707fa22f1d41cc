"""Distributed calls are measured under torchrun, recorded and reported beside one process."""

from __future__ import annotations

import csv
import io
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sddmm.backends.cpu.backend as cpu_backend
from experiments.bench import report
from experiments.bench.config import ReportConfig, Timing
from experiments.bench.errors import ExperimentError
from experiments.bench.sources import Uniform
from experiments.bench.store import Store
from experiments.distributed import timeline
from experiments.distributed.case import make_case
from experiments.distributed.expected import expected_efficiency, expected_ms
from experiments.distributed.objective import DISTRIBUTED
from experiments.distributed.record import Record
from experiments.pictures.figures import figures
from experiments.sddmm.config import Config

RECORD = Record(
    key="k", session="s", status="ok", matrix="m", definition={}, m=10, n=10, nnz=20, k=4,
    dtype="float32", seed=0, method="sddmm", ranks=2, way="ring", samples_ms=[4.0, 5.0, 6.0],
    one_ms=[8.0, 9.0], back_to_back_ms=[4.0, 4.0, 5.0], one_back_to_back_ms=[8.0],
    received_bytes=[80, 100_000], messages_ms=2.0,
    spans=[
        [["compute", "panel 0", 0.0, 900.0], ["wait", "panel 1", 900.0, 1400.0]],
        [["compute", "panel 1", 0.0, 1000.0], ["wait", "panel 0", 1000.0, 1200.0]],
    ],
    environment={"device": "a processor", "threads": 1},
)  # fmt: skip


def config(tmp_path: Path, **options: Any) -> Config:
    return Config(
        objective="distributed", matrix=Uniform(rows=20, cols=20, nnz=60), k=4, device="cpu",
        records=str(tmp_path / "records.jsonl"),
        timing=Timing(seconds=0.0, min_samples=2, max_samples=2), **options,
    )  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 40, 1 << 24])
def test_parts_of_an_operand_are_those_of_the_whole(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the chunks in which rows are drawn: one row, some of them, or all."""
    monkeypatch.setattr("experiments.distributed.case.CHUNK", chunk)
    made = make_case("m", replace(config(Path("unused")), heads=2), "cpu")
    rows, values = made.rows_of("a", 0, 20), made.weights(0, 60)
    assert rows.shape == (2, 20, 4)
    assert values.shape == (2, 60)
    for begin, end in ((0, 20), (3, 17), (19, 20), (5, 5)):
        assert torch.equal(made.rows_of("a", begin, end), rows[:, begin:end])
        assert torch.equal(made.weights(begin, end), values[:, begin:end])
    at = torch.tensor([0, 4, 5, 11, 19])
    assert torch.equal(made.chosen_rows("a", at), rows[:, at])
    assert torch.equal(made.chosen_weights(3 * at), values[:, 3 * at])
    assert not torch.equal(made.rows_of("b_t", 0, 20), rows)
    assert rows.std().item() == pytest.approx(1, abs=0.3)
    assert rows.unique().numel() == rows.numel()


def test_a_run_without_torchrun_says_how_to_start_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ExperimentError, match="torchrun --nproc-per-node 2 -m experiments run"):
        DISTRIBUTED.run([("m", config(tmp_path))])


def test_a_run_of_one_rank_stores_and_prints_a_row_for_each_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two ranks measure in tests/sddmm/distributed, where they run already."""
    monkeypatch.setattr(cpu_backend, "find_spec", lambda name: None)  # numba compiles for long
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))
    DISTRIBUTED.run([("tiny", config(tmp_path, way="rows"))])
    records = Store(tmp_path / "records.jsonl", Record).records()
    assert [r.method for r in records] == ["sddmm", "spmm", "training", "attention"]
    assert {(r.status, r.ranks, r.way, r.matrix) for r in records} == {("ok", 1, "rows", "tiny")}
    assert len({(r.session, r.date) for r in records}) == 1
    assert len({r.key for r in records}) == 4
    assert "on 1 ranks" in capsys.readouterr().out


def test_a_row_shows_the_slowest_rank_beside_one_process() -> None:
    (row,) = DISTRIBUTED.rows([RECORD])
    expected = {
        "ranks": "2x1", "way": "ring", "time ms": "5", "one process ms": "8.5", "speed-up": "1.70",
        "efficiency": "0.85", "back to back ms": "4", "efficiency back to back": "1.00",
        "received MB": "0.100", "messages alone ms": "2",
        "waited ms": "0.500", "hidden": "75%",
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected


def test_operations_are_found_faster_than_one_process_not_than_each_other() -> None:
    slow = replace(RECORD, method="spmm", samples_ms=[17.0])
    untimed = replace(RECORD, method="training", samples_ms=[])
    found = DISTRIBUTED.finding([RECORD, slow, untimed])
    assert found == "Times as fast as one process: sddmm 1.70, spmm 0.50."
    several = DISTRIBUTED.finding([slow, replace(slow, samples_ms=[4.25]), RECORD])
    assert several == (
        "Times as fast as one process: spmm 1.00 (0.50 to 2.00 in 2 cases), sddmm 1.70."
    )
    assert DISTRIBUTED.finding([untimed]) == "None was timed."


def test_records_of_other_ways_and_ranks_are_other_cases() -> None:
    others = [replace(RECORD, way="rows"), replace(RECORD, ranks=4), replace(RECORD, replicas=2)]
    assert len({r.case for r in (RECORD, *others)}) == 4


def test_the_report_has_figures_and_a_timeline_of_the_largest_case() -> None:
    small = replace(RECORD, matrix="small", nnz=2, way="rows", definition={"source": "other"})
    pages = DISTRIBUTED.pages([RECORD, small])
    assert "| ring " in pages["report.md"]
    (line, _) = csv.DictReader(io.StringIO(pages["report.csv"]))
    assert float(line["speedup"]) == 1.7
    picture = pages["timeline.svg"]
    assert picture.count(">rank ") == 2
    assert "m, K = 4, float32" in picture
    assert "small" not in picture
    assert "1.4 ms" in picture


def test_the_report_of_several_ranks_is_written_with_its_page(tmp_path: Path) -> None:
    store = Store(tmp_path / "records.jsonl", Record)
    store.append(RECORD)
    report.report(
        DISTRIBUTED, ReportConfig(records=[str(store.path)], output=str(tmp_path / "out"))
    )
    written = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {"timeline.svg", "efficiency.svg", "efficiency.png"}
    assert written == {"report.md", "report.csv", "report.html", *pictures}


def test_the_timeline_is_of_the_matrix_that_most_records_have_on_the_most_ranks() -> None:
    on_four = [replace(RECORD, ranks=4, way=way) for way in ("ring", "rows")]
    larger = replace(RECORD, ranks=4, nnz=50, definition={"source": "other"})
    assert timeline.chosen([RECORD, larger, *on_four]) == on_four
    messages = [["transfer", "panel 1", 100.0, 900.0]]
    on_gpu = replace(RECORD, spans=[spans + messages for spans in RECORD.spans])
    drawn = timeline.draw([on_gpu])
    assert "messages on their way" in drawn
    assert "messages on their way" not in timeline.draw([RECORD])


def test_the_time_that_is_expected_overlaps_messages_with_what_the_steps_compute() -> None:
    """One process takes 8 ms: two ranks 4 ms, of which panels are a half and slices an eighth."""
    record = replace(RECORD, one_ms=[8.0], predicted_messages_ms=3.0)
    assert expected_ms(record) == pytest.approx(3.0 + 2.0)  # the second panel waits for messages
    assert expected_ms(replace(record, predicted_messages_ms=1.0)) == pytest.approx(2.0 + 2.0)
    sliced = replace(record, way="slices", method="spmm", heads=8)
    assert expected_ms(sliced) == pytest.approx((3.0 + 7 * 4.0 + 4.0) / 8)
    assert expected_ms(replace(sliced, method="sddmm")) == expected_ms(record)
    of_columns = replace(sliced, heads=1, k=512, dtype="float16")  # two slices of 512 bytes
    assert expected_ms(of_columns) == pytest.approx((3.0 + 4.0 + 4.0) / 2)
    assert expected_ms(replace(of_columns, method="attention")) == pytest.approx(3.0 + 4.0)
    assert expected_efficiency(record) == pytest.approx(8.0 / 5.0 / 2)
    assert expected_ms(replace(record, one_ms=[])) is None
    two_replicas = replace(record, ranks=4, replicas=2)
    assert expected_ms(two_replicas) == pytest.approx(2.0 + 3.0)  # nothing is hidden
    assert expected_ms(replace(record, one_back_to_back_ms=[6.0]), True) == pytest.approx(3.0 + 1.5)
    assert expected_ms(replace(record, method="training")) == pytest.approx(4.0)


def test_a_call_on_gpus_has_to_be_launched_and_of_five_the_first_one() -> None:
    on_gpu = replace(
        RECORD, one_ms=[8.0], one_back_to_back_ms=[8.0], predicted_messages_ms=3.0,
        engine={"name": "NCCL"},
    )  # fmt: skip
    panel, steps = 2.0, 2 * 0.05
    assert expected_ms(on_gpu) == pytest.approx(1.0 + 3.0 + panel + steps)
    assert expected_ms(on_gpu, True) == pytest.approx(1.0 / 5 + 3.0 + panel + steps)
    short = replace(on_gpu, predicted_messages_ms=1.0)  # beside which kernels take longer
    assert expected_ms(short) == pytest.approx(0.3 + panel + 0.2 * 1.0 + panel + steps)


def test_a_product_computes_its_densest_rows_before_the_first_slice_has_come() -> None:
    """A rank has half of 2 x 10^9 nonzeros, and half of these lie in its own columns, but only
    25 for each of the 10^6 rows that come, and six million, are computed early."""
    product = replace(
        RECORD, method="spmm", way="row_slices", k=256, dtype="float16", nnz=2 * 10**9,
        one_ms=[200.0], predicted_messages_ms=5.0, received_bytes=[512 * 10**6, 0],
    )  # fmt: skip
    assert expected_ms(product) == pytest.approx(5.0 + 100.0 - 3.1)
    few = replace(product, nnz=10**7)  # all that lie in its own columns
    assert expected_ms(few) == pytest.approx(100.0)


def test_the_picture_of_efficiency_has_a_panel_for_each_number_of_ranks() -> None:
    slow = replace(RECORD, way="rows", samples_ms=[50.0])
    untimed = replace(RECORD, ranks=8, one_ms=[])
    on_four = replace(RECORD, ranks=4, definition={"source": "other"})
    (picture,) = figures(DISTRIBUTED, [slow, RECORD, on_four, untimed])
    assert picture.figure is not None
    panels = {ax.get_title(): ax for ax in picture.figure.axes}
    kinds = ("one call", "back to back")
    assert list(panels) == [f"{ranks} ranks, {kind}" for ranks in (2, 4) for kind in kinds]
    for kind, efficiency in zip(kinds, (8.5 / 5.0 / 2, 8.0 / 4.0 / 2), strict=True):
        measured = panels[f"2 ranks, {kind}"].lines[0]
        assert measured.get_xdata().tolist() == [2.0]  # 20 nonzeros in 10 rows
        assert measured.get_ydata().tolist() == pytest.approx([efficiency])
    (nothing,) = figures(DISTRIBUTED, [untimed])
    assert nothing.figure is None
