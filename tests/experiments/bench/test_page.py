"""The HTML page of a report: true for any records, escaped, and with what measures them again."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from experiments import cli
from experiments.attention.objective import ATTENTION
from experiments.attention.record import Record as AttentionRecord
from experiments.bench import arguments, report
from experiments.bench.config import ReportConfig
from experiments.bench.errors import NoRecords
from experiments.bench.objective import AnyObjective
from experiments.bench.page.render import Figure, render
from experiments.bench.page.tables import OTHER, Table
from experiments.bench.store import Store
from experiments.gemm.objective import GEMM
from experiments.gemm.record import GemmRecord
from experiments.sddmm.case import source_of
from experiments.sddmm.objective import SDDMM
from experiments.sddmm.problems import problems_of
from experiments.sddmm.record import Record
from experiments.spmm.objective import SPMM
from experiments.spmm.record import Record as SpmmRecord
from experiments.training.objective import TRAINING
from experiments.training.record import Record as TrainingRecord
from tests.conftest import ROOT
from tests.experiments.records import record

HOSTILE = "<script>document.title = 'run'</script> & \"q\" 'a' {{ 7 * 6 }} | x.mtx"


class Page(HTMLParser):
    """The tags of a page, and its text without scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] not in ("script", "style"):
            self.text += data


def environment(**changes: Any) -> dict[str, Any]:
    return {
        "device": "a GPU", "cpu": "a CPU", "threads": 2, "libraries": {"torch": "9.9"},
        "gpu": {"cuda": "13.0", "driver_version": "580.1", "clocks.sm": "1980 MHz"},
        "commit": "a1" * 20, "dirty": False, "source": "d1gest", **changes,
    }  # fmt: skip


def gemm(variant: str, ms: float | None) -> GemmRecord:
    return GemmRecord(
        key=variant, session="s", status="ok" if ms else "failed", reason="" if ms else "no ptxas",
        samples_ms=[ms] * 3 if ms else [], environment=environment(), m=8, n=8, k=8,
        dtype="float16", accumulate="fp32", b_rows="k", variant=variant, baseline="cublas",
    )  # fmt: skip


def of_kind(kind: Any, *records: Record) -> list[Any]:
    return [kind(**asdict(r)) for r in records]


PAIR = (record("ours", 0.25, kernel="first"), record("cusparse", 0.5))
FORCED = (*PAIR, record("first", 0.3, kernel="first"))
REFUSED = (record("cusparse", None), record("torch_csr", None))
OBJECTIVES: dict[str, tuple[AnyObjective, list[Any], list[Any]]] = {
    "sddmm": (SDDMM, list(PAIR), list(REFUSED)),
    "regret": (SDDMM, list(FORCED), [*REFUSED, record("first", None, kernel="first")]),
    "spmm": (SPMM, of_kind(SpmmRecord, *FORCED), of_kind(SpmmRecord, *REFUSED)),
    "training": (TRAINING, of_kind(TrainingRecord, *PAIR), of_kind(TrainingRecord, *REFUSED)),
    "attention": (ATTENTION, of_kind(AttentionRecord, *PAIR), of_kind(AttentionRecord, *REFUSED)),
    "gemm": (GEMM, [gemm("cublas", 1.0), gemm("mma", 2.0)], [gemm("mma", None)]),
}


def table_of(tables: list[Table], title: str) -> Table:
    return next(table for table in tables if table.title == title)


def test_a_name_of_a_matrix_is_text_wherever_it_stands() -> None:
    hostile = record("ours", 0.25, matrix=HOSTILE, definition={"source": HOSTILE})
    refused = record(HOSTILE, None, matrix=HOSTILE, reason=HOSTILE)
    html = render(SDDMM, [hostile, refused], [Figure(HOSTILE, HOSTILE, "")], [HOSTILE], HOSTILE)
    page = Page(html)
    assert page.tags.count("script") == 1
    assert f"{HOSTILE} is not drawn: {HOSTILE}" in " ".join(page.text.split())
    text = " ".join(page.text.split())
    assert text.count(HOSTILE) >= 8
    assert "\\|" not in text  # Markdown's escape
    assert "{{ 7 * 6 }}" in html


def test_the_page_needs_nothing_beside_it() -> None:
    html = render(
        SDDMM, list(PAIR), [Figure("t", "c", "<svg xmlns='http://www.w3.org/2000/svg'/>")]
    )
    assert "default-src 'none'" in html
    for word in ("src=", "href="):
        targets = [part[1:5] for part in html.split(word)[1:]]
        assert set(targets) <= {"data", "#cas", "#mea", "#pic", "#ref", "#noi", "#whe"}, targets


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_column_of_an_objective_has_a_meaning_and_few_are_shown_first(name: str) -> None:
    objective, records, _ = OBJECTIVES[name]
    wide = [table for table in objective.tables(records) if table.groups]
    assert table_of(wide, "Measurements")
    for table in wide:
        assert len(table.rows[0]) >= 18
        assert [c.name for c in table.columns if c.group == OTHER or not c.meaning] == []
        assert len([c for c in table.columns if not c.is_extra]) <= 16
        assert {c.name for c in table.columns} == set(table.rows[0])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_records_without_a_single_time_give_a_page_with_the_reasons(
    name: str, tmp_path: Path
) -> None:
    objective, _, refused = OBJECTIVES[name]
    store: Store[Any] = Store(tmp_path / "records.jsonl", objective.record_type)
    for r in refused:
        store.append(r)
    config = ReportConfig(records=[str(store.path)], output=str(tmp_path), plots=False)
    report.report(objective, config)
    page = Page((tmp_path / "report.html").read_text())
    assert "0 of 0 times are noisy" in page.text
    assert refused[0].reason in page.text


def test_every_environment_is_named_with_what_measures_its_records_again() -> None:
    others = environment(device="another GPU", commit="b2" * 20, source="d2gest")
    records = [
        record("ours", 0.25, environment=environment(), date="2026-01-02T00:00:00Z"),
        record("ours", 0.5, environment=others, key="other"),
        record("ours", 0.5, environment=environment(dirty=True), key="dirty", k=16),
    ]
    text = Page(render(SDDMM, records)).text
    for fact in ("580.1", "torch 9.9", "d1gest", "d2gest", "2026-01-02", "another GPU"):
        assert fact in text
    assert "git checkout " + "a1" * 20 in text
    assert "git checkout " + "b2" * 20 in text
    assert "# measured with changes that are not in commit" in text
    measured = table_of(SDDMM.tables(records), "Measurements")
    assert not next(c for c in measured.columns if c.name == "device").is_extra


def test_a_case_on_two_devices_has_two_rows_in_a_study() -> None:
    places = [{"environment": environment(device=name)} for name in ("one", "two")]
    records = [record("ours", 0.25, kernel="first", **place) for place in places]
    records.append(record("first", 0.5, kernel="first", **places[0]))
    problems = table_of(SDDMM.tables(records), "Problems")
    assert [row["device"] for row in problems.rows] == ["one", "two"]


def test_lines_that_are_no_records_are_named_on_the_page(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    Store(path, Record).append(record("ours", 0.25))
    with path.open("a") as file:
        file.write(json.dumps(asdict(record("cusparse", 1.0)))[:40])
    config = ReportConfig(records=[str(path)], output=str(tmp_path), plots=False)
    report.report(SDDMM, config)
    assert (
        "passed over what is no record: line 2 (cut off)" in (tmp_path / "report.html").read_text()
    )


def test_a_file_without_records_is_an_error_and_its_page_says_so(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"cut\n')
    (tmp_path / "report.html").write_text("a page of records that are gone")
    with pytest.raises(NoRecords, match="no records in"):
        report.report(SDDMM, ReportConfig(records=[str(path)], output=str(tmp_path)))
    text = Page((tmp_path / "report.html").read_text()).text
    assert "There are no records." in text
    assert "line 1" in text


def test_noise_is_flagged_and_a_single_sample_is_counted() -> None:
    records = [
        record("ours", 0.25, samples_ms=[1.0, 1.0, 1.0]),
        record("cusparse", 0.25, samples_ms=[1.0, 2.0, 3.0]),
        record("torch_csr", 0.25, samples_ms=[1.0]),
    ]
    text = Page(render(SDDMM, records)).text
    assert "1 of 3 times are noisy" in text
    assert "1 are of a single sample" in text
    assert "1.857 noisy" in text  # 2.6 over 1.4
    assert text.count("1.857 noisy") == 2  # among the measurements, and among the noisy


def first_record(folder: str, kind: Any, **fields: Any) -> Any:
    """The first committed record of ours with these fields, of a case that is still in conf/."""
    with (ROOT / "docs/results/h200" / folder / "records.jsonl").open() as file:
        for line in file:
            values = json.loads(line)
            if values["method"] == "ours" and fields.items() <= values.items():
                return kind(**{k: v for k, v in values.items() if k not in kind.retired})
    raise AssertionError(f"{folder} has no such record")


@pytest.mark.parametrize(
    ("objective", "measured"),
    [
        (SDDMM, first_record("peers", Record, matrix="u36k")),
        (SDDMM, first_record("published", Record, k=500)),
        (SDDMM, first_record("regret", Record, matrix="window_16k", heads=8)),
        (SPMM, first_record("spmm_transposed", SpmmRecord)),
        (TRAINING, first_record("training", TrainingRecord)),
    ],
    ids=lambda value: getattr(value, "matrix", ""),
)
def test_the_command_of_a_case_composes_to_that_case(
    objective: AnyObjective, measured: Any
) -> None:
    (command,) = objective.commands([measured])
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "experiments", "run"]
    cli.register()
    with initialize_config_dir(str(arguments.CONF), version_base="1.3"):
        config = cli.typed(compose("config", arguments.prepare(words[4:], ("only", "methods"))))
    assert config.objective == objective.name
    assert config.transpose == getattr(measured, "transpose", False)
    found = [problem for _, problem in problems_of(config)] if config.problems else [config]
    cases = [(source_of(c).definition(), c.k, c.dtype, c.heads, c.seed) for c in found]
    own = (measured.definition, measured.k, measured.dtype, measured.heads, measured.seed)
    assert own in cases


def test_a_file_is_measured_again_by_its_path_and_what_conf_does_not_define_is_told() -> None:
    path = "my matrices/it's.mtx"
    file = record("ours", 1.0, matrix=path, definition={"source": "File", "path": path})
    (command,) = SDDMM.commands([file])
    assert f"+matrix={path}" in shlex.split(command)
    assert shlex.split(command)[0] == "OMP_NUM_THREADS=2"  # it was measured on a CPU
    assert command.endswith("'methods=[ours]' device=cpu")
    (told,) = SDDMM.commands(
        [record("ours", 1.0, matrix="gone\nrm", definition={"source": "Gone"})]
    )
    assert told.startswith("# no configuration in conf/ defines the matrix")
    assert "\n" not in told


def test_a_shape_of_the_ladder_is_measured_again_by_its_arithmetic() -> None:
    (command,) = GEMM.commands([gemm("cublas", 1.0), gemm("mma", 2.0)])
    assert command == (
        "python -m experiments gemm shape=8x8x8 dtype=float16 accumulate=fp32 b_rows=k "
        "'variants=[mma]'"
    )
