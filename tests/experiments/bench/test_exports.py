"""Reports are written as LaTeX and as Parquet too, without loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.bench import exports, report
from experiments.bench.config import ReportConfig
from experiments.bench.errors import ExperimentError
from experiments.bench.page.tables import Table
from experiments.bench.store import Store
from experiments.sddmm.objective import SDDMM
from experiments.sddmm.record import Record
from tests.experiments.records import record

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def exported(tmp_path: Path, records: list[Record], *formats: str) -> Path:
    store = Store(tmp_path / "records.jsonl", Record)
    for r in records:
        store.append(r)
    output = tmp_path / "out"
    config = ReportConfig(
        records=[str(store.path)], output=str(output), plots=False, html=False, quiet=True,
        formats=list(formats),
    )  # fmt: skip
    report.report(SDDMM, config)
    return output


def test_parquet_holds_every_figure_at_full_precision_and_names_as_they_are(tmp_path: Path) -> None:
    nothing_known = {"device": "a CPU", "commit": "0012e45"}
    records = [
        record("ours", 1 / 3, matrix="nan", environment=nothing_known),
        record("isratnisa", 4.0, matrix="nan", environment=nothing_known),
        record("cusparse", None, matrix="007", first_call_ms=[]),
    ]
    output = exported(tmp_path, records, "parquet")
    assert {path.name for path in output.glob("*.parquet")} == {"measurements.parquet"}
    frame = pd.read_parquet(output / "measurements.parquet").set_index("method")
    assert frame.loc["ours", "median_ms"] == 2 / 3
    assert list(frame["matrix"].sort_values()) == ["007", "nan", "nan"]
    assert frame.loc["ours", "commit"] == "0012e45"
    assert frame.loc["cusparse", ["median_ms", "first_call_ms"]].isna().all()
    assert frame["nnz"].tolist() == [50] * 3


def test_latex_has_the_columns_that_a_page_shows_and_says_where_it_was_measured(
    tmp_path: Path,
) -> None:
    records = [record("ours", 1.0, matrix="100%_a&b"), record("isratnisa", 4.0, matrix="100%_a&b")]
    output = exported(tmp_path, records, "tex")
    text = (output / "cases.tex").read_text()
    assert text.startswith("% needs the packages booktabs and longtable\n% * 2 threads of ")
    assert r"100\%\_a\&b" in text
    assert "On a CPU, 2 threads. isratnisa (cuSDDMM, Nisa et al., HiPC 2018) is" in text
    measured = (output / "measurements.tex").read_text()
    assert r"speedup\_over\_isratnisa" in measured
    assert "session" not in measured


def test_a_long_table_goes_over_pages_and_tables_of_one_title_have_files_of_their_own(
    tmp_path: Path,
) -> None:
    long = Table("All", [{"n": n} for n in range(50)])
    short = Table("All", [{"n": 0.5}, {"n": "a"}])
    paths = exports.write([long, short, Table("None", [])], ["tex", "parquet"], tmp_path)
    assert [p.name for p in paths] == ["all.tex", "all.parquet", "all_.tex", "all_.parquet"]
    assert r"\begin{longtable}" in paths[0].read_text()
    assert r"\begin{longtable}" not in paths[2].read_text()
    assert pd.read_parquet(paths[3])["n"].tolist() == ["0.5", "a"]


def test_a_format_that_cannot_be_written_is_refused_before_anything_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ExperimentError, match="formats must be of tex, parquet, got 'docx'"):
        exported(tmp_path, [record("ours", 1.0)], "docx")
    monkeypatch.setattr(exports, "find_spec", lambda name: None)
    needs = r"formats=parquet needs pandas and pyarrow: pip install 'sddmm\[exports\]'"
    with pytest.raises(ExperimentError, match=needs):
        exported(tmp_path, [record("ours", 1.0)], "parquet")
    assert not (tmp_path / "out").exists()
