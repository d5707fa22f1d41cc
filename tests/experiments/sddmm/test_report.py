"""Records are merged into tables and plots, and two commits are compared."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from experiments.bench import report, table
from experiments.bench.config import ReportConfig
from experiments.bench.errors import ExperimentError
from experiments.bench.store import Store
from experiments.sddmm import published as published_sddmm
from experiments.sddmm.objective import SDDMM
from experiments.sddmm.record import Record
from tests.experiments.records import record


def test_figures_of_a_row() -> None:
    rows = SDDMM.rows([record("isratnisa", 4.0), record("ours", 1.0), record("other", None)])
    ours = rows[1]
    assert ours["time ms"] == "2"
    assert ours["first call ms"] == "3"
    assert ours["p20-p80"] == "1.4-2.6"
    assert ours["GFLOP/s"] == "0.000"  # 800 flops in 2 ms
    assert ours["vs isratnisa"] == "4.00x"
    assert ours["sparsity"] == "50%"
    assert ours["error"] == "1.0e-08"
    assert rows[2]["status"] == "skipped"
    assert rows[2]["time ms"] == rows[2]["vs isratnisa"] == ""
    assert record("ours", 1.0, nnz=5 * 10**9, k=100).gflops == pytest.approx(500_000)


def test_speedups_compare_one_case_only_and_prefer_its_own_session() -> None:
    records = [
        record("isratnisa", 4.0),
        record("ours", 1.0),
        record("ours", 1.0, k=16),
        record("ours", 1.0, session="t"),
        record("isratnisa", 8.0, session="t"),
    ]
    of_s, of_t = records[1].key, records[3].key
    speedup = table.speedups(records, "isratnisa")
    assert (speedup[of_s], speedup[of_t]) == (4.0, 8.0)
    assert records[2].key not in speedup
    assert table.speedups(records[:4], "isratnisa")[of_t] == 4.0


def test_rows_of_one_case_that_were_not_interleaved_are_marked() -> None:
    records = [
        record("isratnisa", 4.0, session="t", date="2026-02-01T00:00:00Z"),
        record("ours", 1.0, session="s", date="2026-01-01T00:00:00Z"),
        record("ours", 1.0, k=16),
    ]
    assert [row["run"] for row in SDDMM.rows(records)] == ["b", "a", ""]
    assert table.NOT_INTERLEAVED in SDDMM.notes(records)
    summary = report.as_summary(SDDMM, records)
    assert "2,000 a" in summary
    assert "8,000 b" in summary
    assert table.NOT_INTERLEAVED in summary
    assert "run" not in SDDMM.rows(records[1:])[0]
    assert table.NOT_INTERLEAVED not in report.as_summary(SDDMM, records[1:])


def test_the_short_table_has_a_status_for_a_time_and_a_mark_for_noise() -> None:
    records = [record("isratnisa", 4.0, samples_ms=[4.0, 4.0]), record("ours", 1.0)]
    records.append(record("cusparse", None))
    text = report.as_markdown(SDDMM, records)
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    assert header[:3] == ["matrix", "nnz", "K"]
    assert header[4:] == ["method", "time ms", "vs isratnisa", "first call ms", "prepare ms"]
    assert [row[5] for row in rows] == ["4", "2 ~", "skipped"]
    assert f"* {table.NOISE}" in text
    assert table.NOISE not in report.as_markdown(SDDMM, records[:1])


def test_a_row_is_noisy_if_its_p80_is_a_tenth_above_its_p20() -> None:
    assert record("ours", 1.0).spread == pytest.approx(2.6 / 1.4)
    assert record("ours", 1.0).is_noisy
    assert not record("ours", 1.0, samples_ms=[1.0, 1.05, 1.1]).is_noisy
    for samples in ([], [3.0], [0.0, 0.0]):
        lone = record("ours", 1.0, samples_ms=samples)
        assert lone.spread is None
        assert not lone.is_noisy


def test_the_text_table_is_aligned_markdown() -> None:
    lines = table.as_text(SDDMM.rows([record("isratnisa", 4.0), record("ours", 1.0)])).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert set(lines[1]) == set("|-:")
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == [
        "matrix", "nnz", "sparsity", "K", "dtype", "method", "status", "prepare ms",
        "first call ms", "time ms", "p20-p80", "GFLOP/s", "vs isratnisa", "error",
    ]  # fmt: skip


def test_a_report_merges_files_and_writes_tables_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for nnz in (50, 10):
        for k in (8, 16):
            Store(files[0], Record).append(record("isratnisa", 4.0, k=k, nnz=nnz))
            Store(files[0], Record).append(record("ours", 3.0, k=k, nnz=nnz, key=f"old{k}{nnz}"))
            Store(files[1], Record).append(record("ours", 1.0, k=k, nnz=nnz))
    Store(files[1], Record).append(record("cusparse", None))
    output = tmp_path / "out"
    report.report(SDDMM, ReportConfig(records=[str(f) for f in files], output=str(output)))
    names = {"report.md", "report.csv", "summary.md", "report.html"} | {
        f"{picture}.{kind}"
        for picture in (
            *("speedup", "speedup_over_k", "speedup_over_nnz", "speedup_over_density"),
            *("roofline", "calls_until_preparation_pays", "first_call"),
        )
        for kind in ("png", "svg")
    }
    assert {path.name for path in output.iterdir()} == names
    text = (output / "report.md").read_text()
    assert "## a CPU" in text
    lines = text.splitlines()
    first_row = next(number for number, line in enumerate(lines) if line.startswith("|"))
    assert lines[first_row - 2].startswith("`isratnisa` (cuSDDMM")
    assert "* cusparse: skipped: no such library" in text
    out = capsys.readouterr().out
    assert text in out
    assert f"written to {output}: report.md, report.csv, summary.md, " in out
    rows = list(csv.DictReader(io.StringIO((output / "report.csv").read_text())))
    assert len(rows) == 9  # the newer of each of ours only
    assert {r["speedup_over_isratnisa"] for r in rows if r["method"] == "ours"} == {"4.0"}
    assert (output / "speedup_over_k.png").read_bytes().startswith(b"\x89PNG")
    svg = (output / "speedup_over_density.svg").read_text()
    assert "<svg" in svg


def test_the_summary_sets_every_method_beside_ours() -> None:
    records = [record("ours", 0.25), record("isratnisa", 1.5), record("cusparse", 0.5)]
    sentence, _, unit, _, header, _, row = report.as_summary(SDDMM, records).splitlines()
    assert unit == "Times are medians in us."
    assert sentence == (
        "`isratnisa` (cuSDDMM, Nisa et al., HiPC 2018) is a re-implementation of ours from a "
        "description, not the authors' code."
    )
    cells = dict(zip(header.split("|"), row.split("|"), strict=True))
    by_column = {name.strip(): cell.strip() for name, cell in cells.items()}
    assert (by_column["ours"], by_column["isratnisa"], by_column["cusparse"]) == (
        "500",
        "3,000",
        "1,000",
    )
    assert by_column["best other / ours"] == "2.00"
    assert by_column["first call"] == "2,250"  # the median
    assert by_column["first call, best other / ours"] == "1.11"  # 2.5 ms over 2.25
    assert "with preparation" not in by_column


def test_a_record_without_first_calls_has_an_empty_cell_and_nothing_is_put_in_its_place() -> None:
    records = [record("ours", 0.25, first_call_ms=[]), record("cusparse", 0.5)]
    *_, row = report.as_summary(SDDMM, records).splitlines()
    assert [cell.strip() for cell in row.split("|")][-3:-1] == ["", ""]
    assert [row["first call ms"] for row in SDDMM.rows(records)] == ["", "2.5"]
    (ours, _) = csv.DictReader(io.StringIO(SDDMM.pages(records)["report.csv"]))
    assert ours["first_call_ms"] == ""


A, B = "a1" * 20, "b2" * 20


def at(commit: str, method: str, ms: float | None, dirty: bool = False, **changes: Any) -> Record:
    environment = {"device": "a CPU", "threads": 2, "commit": commit, "dirty": dirty}
    return record(method, ms, environment=environment, **changes)


def compared(tmp_path: Path, records: list[Record], commits: list[str]) -> list[list[str]]:
    store = Store(tmp_path / "records.jsonl", Record)
    for r in records:
        store.append(r)
    output = tmp_path / "out"
    report.report(
        SDDMM, ReportConfig(records=[str(store.path)], output=str(output), compare=commits)
    )
    lines = (output / "compare.md").read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:]]


def test_two_commits_stand_side_by_side_also_where_one_lacks_rows(tmp_path: Path) -> None:
    """Records of one key too, of which only the last counts elsewhere."""
    records = [
        at(A, "ours", 9.0),
        at(A, "ours", 2.0),
        at(B, "ours", 1.0),
        at("c3" * 20, "ours", 7.0),
        at(A, "isratnisa", 4.0),
        at(B, "ours", 5.0, k=16),
        at(B, "isratnisa", None, k=16),
    ]
    rows = compared(tmp_path, records, ["a1a1a1", "b2b2b2b"])
    assert [row[3:] for row in rows] == [
        ["8", "float32", "ours", "4", "2", "0.500"],
        ["8", "float32", "isratnisa", "8", "", ""],
        ["16", "float32", "ours", "", "10", ""],
        ["16", "float32", "isratnisa", "", "skipped", ""],
    ]
    assert {row[0] for row in rows} == {"a CPU, 2 threads"}


def test_a_time_of_uncommitted_changes_is_marked_and_gives_way(tmp_path: Path) -> None:
    records = [
        *(at(A, "ours", 2.0), at(A, "ours", 3.0, dirty=True)),
        at(B, "ours", 1.0, dirty=True),
    ]
    (row,) = compared(tmp_path, records, [A, B])
    assert row[-3:] == ["4", "2 +", "0.500"]


@pytest.mark.parametrize(
    ("commits", "message"),
    [
        (["a1"], r"compare takes two commits, \[A,B\], got 1"),
        (["a1", "a1"], "two different commits, got a1 twice"),
        (
            ["a1", "nope"],
            "no records of commit 'nope'; there are some of a1a1a1a1a1a1, a1b2b2b2b2b2",
        ),
        (["a1", "a1b"], "commit 'a1' is ambiguous: a1a1"),
    ],
)
def test_commits_that_cannot_be_compared_are_told(
    tmp_path: Path, commits: list[str], message: str
) -> None:
    records = [at(A, "ours", 1.0), at("a1" + B[2:], "ours", 1.0)]
    if "ambiguous" not in message:
        commits = [commit.replace("a1", "a1a1") for commit in commits]
        message = message.replace("got a1 ", "got a1a1 ")
    with pytest.raises(ExperimentError, match=message):
        compared(tmp_path, records, commits)


def test_records_of_two_devices_or_numbers_of_threads_never_share_a_row(tmp_path: Path) -> None:
    places = [("one CPU", 2), ("one CPU", 8), ("another CPU", 2)]
    records = [
        record(
            method, ms * (1 + index), key=f"{method}{index}",
            environment={"device": device, "threads": threads},
        )
        for index, (device, threads) in enumerate(places)
        for method, ms in (("ours", 1.0), ("isratnisa", 4.0))
    ]  # fmt: skip
    store = Store(tmp_path / "records.jsonl", Record)
    for r in records:
        store.append(r)
    merged = report.merge(SDDMM, [str(store.path)])
    assert len(merged) == 6
    assert set(table.speedups(merged, "isratnisa").values()) == {1.0, 4.0}
    text = report.as_markdown(SDDMM, merged)
    for heading in ("## one CPU, 2 threads", "## one CPU, 8 threads", "## another CPU\n"):
        assert heading in text
    summary = report.as_summary(SDDMM, merged)
    assert "| device " in summary
    assert summary.count("| one CPU, 8 threads | 10x10 ") == 1


def test_a_matrix_without_rows_is_reported_like_any_other(tmp_path: Path) -> None:
    store = Store(tmp_path / "records.jsonl", Record)
    for method in ("ours", "isratnisa"):
        store.append(record(method, 1.0, m=0, n=10, nnz=0))
    report.report(SDDMM, ReportConfig(records=[str(store.path)], output=str(tmp_path / "out")))
    assert "| 10x10  |   0 | 8 | float32 | ours " in (tmp_path / "out" / "report.md").read_text()


def test_published_figures_stand_beside_ours_where_the_log_has_the_case() -> None:
    size = {"m": 10_000, "n": 10_000, "nnz": 5_000_000, "k": 256}
    records = [
        record(name, ms, **size) for name, ms in (("ours", 0.1), ("isratnisa", 2), ("zcx", 9))
    ]
    text = published_sddmm.as_markdown(records)
    assert text.startswith("`isratnisa` (cuSDDMM, Nisa et al., HiPC 2018) and `zcx` (")
    assert "https://github.com/CX9898/BSMR-SDDMM" in text
    row = text.splitlines()[-1].split("|")
    cells = [cell.strip() for cell in row]
    assert cells[4:6] == ["0.2", "1.5"]
    assert cells[-5:-1] == ["2.3", "102", "0.96", "1.27e+03"]
    assert published_sddmm.as_markdown(records[:2]) == ""


def test_no_records_is_told(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"no records at .*; measure some with"):
        report.report(SDDMM, ReportConfig(records=[str(tmp_path / "none.jsonl")]))
