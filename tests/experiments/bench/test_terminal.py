"""The terminal shows how far a run is, tables that fit, what was found, and how to go on."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from experiments.bench import progress, table, terminal, timing
from experiments.bench.config import Timing
from experiments.bench.findings import finding, noise
from experiments.bench.log import Log
from experiments.bench.progress import CaseProgress, Clock
from experiments.bench.run import run, run_all
from experiments.bench.sources import Uniform
from experiments.bench.store import Store
from experiments.sddmm.config import Config
from experiments.sddmm.objective import SDDMM
from experiments.sddmm.record import Record
from tests.experiments.only import only, right
from tests.experiments.records import record

ROWS = [
    {
        "matrix": "10000x10000", "nnz": "5,000,000", "method": method, "status": "ok",
        "prepare ms": "0.215", "first call ms": "36.2", "time ms": "35.9", "p20-p80": "26.4-36",
        "vs isratnisa": "1.00x", "error": "4.7e-08",
    }
    for method in ("ours", "torch_csr")
]  # fmt: skip


def config(tmp_path: Path, **options: Any) -> Config:
    return Config(
        matrix=Uniform(rows=60, cols=50),
        k=20,
        timing=Timing(min_samples=3, max_samples=3, seconds=0, calls=1),
        records=str(tmp_path / "records.jsonl"),
        **options,
    )


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "WARM_UP_MS", 0.0)


@pytest.mark.parametrize("limit", [40, 60, 80, 120])
def test_a_wide_table_is_cut_into_tables_that_fit_and_lose_no_cell(limit: int) -> None:
    whole = table.as_text(ROWS)
    fitted = terminal.fitted(f"above\n{whole}\nbelow", limit)
    lines = fitted.split("\n")
    assert lines[0] == "above"
    assert lines[-1] == "below"
    assert max(map(len, lines)) <= limit
    for row in ROWS:
        for name, cell in row.items():
            assert name in fitted
            assert cell in fitted
    heads = [line for line in lines if re.match(r"\| method", line)]
    assert len(heads) == fitted.count("| ours ") == fitted.count("| torch_csr ")
    assert (len(heads) == 1) == (limit == 120)
    assert "time ms" in heads[0]  # what matters is in the first table
    assert fitted.count("10000x10000") == 1  # what all rows share stands above


def test_of_several_cases_only_what_tells_them_apart_is_repeated() -> None:
    rows = [{**row, "matrix": f"m{i}", "nnz": f"{i},000"} for i in (1, 2) for row in ROWS]
    fitted = terminal.fitted(table.as_text(rows), 60)
    assert fitted.count("| m1 ") == fitted.count("| m2 ") > 2
    assert fitted.count("1,000") == 2  # once for each method, in one of the tables
    once = [{**row, "matrix": "m1"} for row in rows]  # of one name, which nnz tells apart
    assert terminal.fitted(table.as_text(once), 60).count("1,000") > 2


def test_a_table_that_fits_stays_as_it_is() -> None:
    whole = table.as_text(ROWS)
    assert terminal.fitted(whole, len(whole.split("\n")[0])) == whole


def test_columns_decides_the_width_and_a_pipe_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal.width() is None
    monkeypatch.setenv("COLUMNS", "72")
    assert terminal.width() == 72


def test_one_case_is_found_with_its_winner_and_its_lead() -> None:
    close = "isratnisa is the fastest of 2 methods: 4 ms, 1.50 times as fast as ours, which is "
    assert finding(SDDMM, [record("ours", 3), record("isratnisa", 2)]).startswith(close)
    clear = finding(SDDMM, [record("ours", 1), record("isratnisa", 8), record("zcx", 9)])
    assert clear == ("ours is the fastest of 3 methods: 2 ms, 8.00 times as fast as isratnisa.")
    assert finding(SDDMM, [record("ours", 1)]) == "ours takes 2 ms; nothing else was timed."
    assert finding(SDDMM, [record("ours", None)]) == "No method was timed."


def test_several_cases_are_found_with_the_geometric_mean_and_the_range() -> None:
    """Against the best peer of each case: 8 and 1/2, whose geometric mean is 2."""
    records = [
        record("ours", 1, k=8), record("isratnisa", 8, k=8), record("torch_csr", 80, k=8),
        record("ours", 20, k=16), record("isratnisa", 90, k=16), record("torch_csr", 10, k=16),
        record("row_gather", 0.1, k=16, kernel="row_gather"),  # a kernel by its name
    ]  # fmt: skip
    assert finding(SDDMM, records) == (
        "ours is the fastest on 1 of 2 cases: 2.00 times as fast as the best of the others in the "
        "geometric mean, 0.50 to 8.00."
    )


def test_noise_names_the_rows_above_the_threshold() -> None:
    quiet = record("ours", 1, samples_ms=[1.0, 1.0, 1.05])
    assert noise([quiet]) == ""
    shaky = record("isratnisa", 1, samples_ms=[1.0, 1.0, 1.0, 2.0, 2.0])
    assert "p80 / p20 above 1.1: isratnisa 2.00;" in noise([quiet, shaky])


def test_a_piped_run_prints_a_line_per_case_and_ends_with_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, objective = Log(), only(ours=right, torch_csr=right)
    cases = [("a", config(tmp_path)), ("b", config(tmp_path, seed=1))]
    run_all(objective, cases, log)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "case 1 of 2: a, K 20, float32"
    assert re.fullmatch(r"case 2 of 2: b, K 20, float32, about \d+ s left", lines[1])
    summary, found, kept, following = log.last_words()
    assert re.findall(r"^\| (\w+) ", summary, re.MULTILINE) == ["matrix", "a", "b"]
    assert re.match(r"ours is the fastest on \d of 2 cases: ", found)
    assert kept == f"4 records in {tmp_path}/records.jsonl, all measured now."
    assert following.startswith(
        f"Next: python -m experiments report records={tmp_path}/records.jsonl ("
    )
    again = Log()
    run_all(objective, cases, again)
    assert re.search(
        r": 4 of them there before since 20\d\d-.* UTC; force=true measures again",
        again.last_words()[2],
    )


def test_the_time_left_is_what_measured_cases_took_times_what_is_left() -> None:
    clock = Clock(cases=5, begun=3, measured=2, measured_s=20.0)
    assert clock.left() == "about 30 s left"
    assert clock.left(part=0.5, part_s=5.0) == "about 25 s left"
    assert Clock(cases=None, begun=3, measured=2, measured_s=20.0).left() == ""
    assert (progress.words(600), progress.words(7200)) == ("10 min", "2.0 h")


def test_a_bar_on_a_terminal_is_drawn_at_steps_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "is_watched", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    bar = CaseProgress(Clock(cases=3, begun=1), "u36k, K 256")
    bar.say("timing ours", 0.5)
    shown = capsys.readouterr().err
    time.sleep(0.3)
    assert capsys.readouterr().err == ""
    bar.close(measured=True)
    assert "case 2 of 3" in shown
    assert "timing ours: u36k, K 256" in shown


def test_an_interrupted_case_keeps_the_rows_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    # No call is so short that its round is not counted, however busy the machine is.
    monkeypatch.setattr(timing, "_SHORT_ROUND_MS", 0.0)

    def slow(case: Any) -> Any:
        calls.append("slow")
        if len(calls) > 5:  # the second of three timed runs
            raise KeyboardInterrupt
        return right(case)

    options = config(tmp_path)
    options.timing = Timing(min_samples=3, max_samples=3, seconds=0, calls=1, samples_per_round=3)
    log = Log()
    with pytest.raises(KeyboardInterrupt):
        run(only(good=right, slow=slow), "a", options, log)
    assert [r.method for r in Store(options.records, Record).records()] == ["good"]
    assert log.interruption() == (
        f"interrupted: 1 record of this run is kept in {options.records}; the same command goes "
        f"on from there"
    )
