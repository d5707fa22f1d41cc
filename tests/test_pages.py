"""The pages' tables and pictures are what the committed records give."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest

from experiments import pages
from experiments.bench import report
from experiments.bench.errors import ExperimentError
from experiments.pictures import cases
from experiments.sddmm.objective import SDDMM
from experiments.sddmm.record import Record
from experiments.sddmm.regret import REGRET
from experiments.sddmm.study_problem import Problem
from tests.conftest import ROOT

MARKED = {name: (ROOT / name).read_text(encoding="utf-8") for name in pages.PAGES}


def peers() -> list[Record]:
    return report.merge(SDDMM, [str(ROOT / "docs/results/h200/peers/records.jsonl")])


@pytest.mark.slow
def test_reports_pictures_and_pages_are_what_records_and_code_give(tmp_path: Path) -> None:
    pages.write_all(tmp_path)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in written} == {".md", ".csv", ".svg"}
    drawn = {
        tmp_path / name
        for folder, names in pages.RECORD_PICTURES.items()
        for name in (f"{folder}/{picture}.svg" for picture in names)
    }
    assert drawn <= set(written)
    for path in written:
        committed = ROOT / path.relative_to(tmp_path)
        if path in drawn and matplotlib.__version__ != _drawn_by():
            # Another release places other points.
            assert texts_of(committed) == texts_of(path), committed
        else:
            assert committed.read_bytes() == path.read_bytes(), committed


def _drawn_by() -> str:
    """The release of matplotlib that drew the committed pictures."""
    constraints = (ROOT / ".ci/constraints.txt").read_text(encoding="utf-8")
    (release,) = re.findall(r"^matplotlib==([\d.]+)", constraints, re.MULTILINE)
    return str(release)


def texts_of(svg: Path) -> list[str]:
    """Everything that the picture says in words and figures, in no order."""
    texts = (e.text or "" for e in ElementTree.parse(svg).iter() if e.tag.endswith("text"))
    return sorted(texts)


def test_tables_are_extracts_and_short() -> None:
    marked = re.compile(r"<!-- results:.*?-->\n(.*?)<!-- end -->", re.DOTALL)
    shown = {name: marked.findall(text) for name, text in MARKED.items()}
    assert sum(len(tables) for tables in shown.values()) >= 10
    for name, tables in shown.items():
        for table in tables:
            rows, most = len(table.splitlines()) - 2, 8 if name == "README.md" else 12
            if table.startswith("| folder"):  # where every folder of records has a row
                most = len(pages.RESULTS)
            assert rows <= most, (name, table[:80])


def test_a_page_with_another_figure_is_mended() -> None:
    page = MARKED["README.md"]
    figure = re.search(r"\| u36k .*?\|.*?\| +(\d+) \|", page)
    assert figure is not None
    drifted = page[: figure.start(1)] + "999" + page[figure.end(1) :]
    assert drifted != page
    assert pages.with_tables(drifted) == page


def test_a_study_without_records_says_so_until_it_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = "docs/results/h200/training"
    page = f"<!-- results: {folder}/summary.md where class=all -->\nold\n<!-- end -->"
    assert "| all " in pages.with_tables(page)
    monkeypatch.delitem(pages.RESULTS, folder)
    (shown,) = re.findall(r"-->\n\n(.*)\n\n<!-- end", pages.with_tables(page))
    assert shown == "The study has not been measured yet."


def test_a_marker_may_name_the_columns_that_it_shows() -> None:
    source = "docs/results/h200/gemm/summary.md where variant=cublas only registers; variant"
    shown = pages.with_tables(f"<!-- results: {source} -->\n<!-- end -->").splitlines()
    assert [cell.strip() for cell in shown[1].split("|")] == ["", "registers", "variant", ""]
    assert [cell.strip() for cell in shown[3].split("|")] == ["", "", "cublas", ""]


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("where nonsense=1", "has no column 'nonsense'; it has matrix, nnz"),
        ("without nonsense", "has no column 'nonsense'"),
        ("only nonsense", "has no column 'nonsense'"),
        ("where matrix=nonsense", "has no rows where matrix=nonsense"),
        ('of "nonsense"', r"has no table under \*\*nonsense\*\*"),
        ('list of "nonsense"', r"has no list under \*\*nonsense\*\*"),
    ],
)
def test_a_marker_that_names_nothing_is_refused(marker: str, message: str) -> None:
    page = f"<!-- results: docs/results/h200/peers/summary.md {marker} -->\n<!-- end -->"
    with pytest.raises(ExperimentError, match=message):
        pages.with_tables(page)


PICTURES = [p for p in sorted((ROOT / "docs").rglob("*.svg")) if "_build" not in p.parts]


@pytest.mark.parametrize("path", PICTURES, ids=lambda p: p.stem)
def test_every_picture_is_well_formed_and_on_a_page(path: Path) -> None:
    ElementTree.fromstring(path.read_text(encoding="utf-8"))
    link = f"{path.parent.name}/{path.name})"
    shown = [page for page, text in MARKED.items() if f"]({path.name})" in text or link in text]
    assert shown, f"no page shows {path}"


def test_the_plot_names_the_quickest_peer_of_every_case() -> None:
    leads = {pair.record.case: pair for pair in cases.leads(SDDMM, peers())}
    medians: dict[tuple[object, ...], list[float]] = {}
    for record in peers():
        if record.median_ms and record.method != "ours":
            medians.setdefault(record.case, []).append(record.median_ms)
    assert set(leads) == set(medians)
    svg = (ROOT / "docs/results/h200/peers/speedup.svg").read_text(encoding="utf-8")
    texts = [e.text for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text")]
    for case, pair in leads.items():
        assert pair.ratio == pytest.approx(min(medians[case]) / pair.record.median_ms)
        mark = "*" if pair.reference.method in ("isratnisa", "zcx") else ""
        assert f"{pair.ratio:.2f}x  {pair.reference.method}{mark}" in texts


def regret() -> list[Problem[Record]]:
    """The problems of the study of a hundred problems."""
    return REGRET.problems(
        report.merge(SDDMM, [str(ROOT / "docs/results/h200/regret/records.jsonl")])
    )


def small() -> list[Problem[Record]]:
    """The problems of the study of small matrices."""
    return REGRET.problems(
        report.merge(SDDMM, [str(ROOT / "docs/results/h200/small/records.jsonl")])
    )


LIMITS = " ".join(MARKED["README.md"].partition("Where it loses on an H200:")[2].split())


def test_the_kernels_that_lose_are_named_in_the_limits() -> None:
    assert all(pair.ratio > 1 for pair in cases.leads(SDDMM, peers()))
    assert "in none of the records above" in LIMITS
    assert len(regret()) == 120
    assert not any(p.is_lost for p in regret())
    assert "and in none of a [study of 120 problems]" in LIMITS
    problems = small()
    leads = sorted(p.lead for p in problems if p.is_lost and p.lead)
    assert (
        f"In {len(leads)} of the [{len(problems)} problems of a study of small matrices]" in LIMITS
    )
    assert f"a peer is quicker, by up to {100 / leads[0] - 100:.0f} %" in LIMITS
    to_take = [p for p in problems if p.is_lost and p.best_peer and "dense" in p.best_peer[0]]
    assert {(p.ours.dtype, p.ours.k) for p in to_take} == {("float64", 64), ("float32", 1024)}
    least = min(p.lead for p in to_take if p.lead and p.ours.dtype == "float32")
    of_take = f"{100 / least - 100:.0f} %"
    assert f"in float64 with K = 64, and in float32 with K = 1024, by {of_take}" in LIMITS
    losers = {p.ours.matrix: p.ours.nnz / (p.ours.m * p.ours.n) for p in problems if p.is_lost}
    assert min(losers.values()) > 0.09  # "none of less than 10 %"


def test_the_first_calls_that_lose_are_counted_in_the_limits() -> None:
    summary = (ROOT / "docs/results/h200/peers/summary.md").read_text().splitlines()
    rows = [line for line in summary if line.startswith("|")][2:]
    leads = [float(line.strip("|").split("|")[-1]) for line in rows]
    assert len(leads) == 19
    assert min(leads) >= 1
    assert "in none of the 19 cases of these records" in LIMITS
    problems = [p for p in regret() if p.first_lead]
    lost = [p for p in problems if p.is_lost_first]
    assert f"in {len(lost)} of the 120 problems of the study" in LIMITS
    longest = max(1 / p.first_lead for p in lost if p.first_lead)
    assert f"takes up to {100 * longest - 100:.0f} % longer" in LIMITS
    assert "Those are of fewer than 300,000 nonzeros" in LIMITS
    assert all(p.ours.nnz < 300_000 for p in lost)
    lost_small = [p for p in small() if p.is_lost_first]
    of_small = [p.first_lead for p in lost_small if p.first_lead]
    of_more = [p.first_lead for p in lost_small if p.ours.nnz >= 300_000 and p.first_lead]
    longest = 100 / min(of_small) - 100
    assert len(of_more) == 4
    assert f"four of them of more nonzeros, by up to {100 / min(of_more) - 100:.0f} %" in LIMITS
    assert (
        f"of the small matrices {len(of_small)} of {len(small())}, by up to {longest:.0f} %"
        in LIMITS
    )


def test_what_scaled_samples_lose_and_take_longer_is_in_the_limits() -> None:
    records = report.merge(SDDMM, [str(ROOT / "docs/results/h200/scaled/records.jsonl")])
    assert all(record.scaled for record in records)
    scaled = REGRET.problems(records)
    assert not any(p.is_lost for p in scaled)
    assert f"ours loses none of the [{len(scaled)} problems of a study]" in LIMITS
    assert not any(p.is_lost_first for p in scaled)
    assert "neither by the kernel nor by the first call" in LIMITS
    plain = {p.name: p.us for p in regret()}
    ratios = [p.us / us for p in scaled if p.us and (us := plain.get(p.name))]
    assert len(ratios) > 20
    assert f"Scaled they take up to {max(ratios):.1f} times as long" in LIMITS


def test_what_we_lose_on_a_cpu_is_named_in_the_limits() -> None:
    records = report.merge(SDDMM, [str(ROOT / "docs/results/cpu/records.jsonl")])
    leads = cases.leads(SDDMM, records)
    assert len(leads) >= 9
    lost = [pair for pair in leads if pair.ratio < 1]
    assert len(lost) == 2
    assert {pair.record.nnz for pair in lost} == {90}
    assert {pair.record.environment["cpu"] for pair in leads} == {"AMD EPYC"}
    limits = " ".join(MARKED["README.md"].split())
    assert (
        "(2 threads of an AMD EPYC) `ours` is the quickest in every case but 90 nonzeros" in limits
    )


def test_regret_is_reported_for_every_class_of_patterns() -> None:
    found = regret()
    assert len(found) >= 80
    assert len({problem.ours.family for problem in found}) == 18
    assert all(problem.regret and problem.regret >= 1 for problem in found)
    assert all(problem.kernels and problem.peers for problem in found)


def test_ours_is_quickest_in_every_case_of_the_published_log() -> None:
    """docs/results/README.md says so."""
    records = report.merge(SDDMM, [str(ROOT / "docs/results/h200/published/records.jsonl")])
    leads = cases.leads(SDDMM, records)
    assert len(leads) > 100
    assert all(pair.ratio > 1 for pair in leads)
