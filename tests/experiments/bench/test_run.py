"""A run verifies before it times, records what happened, and resumes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from experiments.bench import timing
from experiments.bench.config import Timing
from experiments.bench.digest import Code
from experiments.bench.errors import RowsFailed
from experiments.bench.run import run
from experiments.bench.sources import Uniform
from experiments.bench.store import Store
from experiments.sddmm.config import Config
from experiments.sddmm.objective import SDDMM
from experiments.sddmm.record import Record
from tests.experiments.only import only, right


@pytest.fixture(autouse=True)
def _no_warm_up_and_time_for_all_first_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "WARM_UP_MS", 0.0)
    monkeypatch.setattr(timing, "_FIRST_CALLS_MS", 60_000.0)  # also on a busy machine


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        matrix=Uniform(rows=60, cols=50),
        k=20,
        timing=Timing(min_samples=3, max_samples=4, seconds=0.01),
        records=str(tmp_path / "records.jsonl"),
    )


def test_every_method_is_verified_timed_and_recorded(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    records = run(SDDMM, "60x50", config)
    assert [r.method for r in records] == SDDMM.names()
    lines = [json.loads(line) for line in Path(config.records).read_text().splitlines()]
    assert {line["method"] for line in lines} == set(SDDMM.names())
    assert {r.method: r.reason for r in records if r.status == "skipped"} == {
        "cusparse": "cuSPARSE computes on a GPU, not on a CPU",
        "zcx": "it is a GPU kernel",
        "torch_float32": "the operands are float32: this is method torch_csr",
    }
    for record in records:
        if record.status == "skipped":
            continue
        assert record.status == "ok"
        assert (record.checked, record.wrong) == (150, 0)
        assert record.error is not None
        assert record.error < 1e-6
        assert record.prepare_ms is not None
        assert len(record.first_call_ms) == 20
        assert min(record.first_call_ms) > 0
        assert 3 <= len(record.samples_ms) <= 4
        assert record.environment["libraries"]["torch"] == version("torch")
        assert record.environment["source"]
    table = capsys.readouterr().out
    for text in ("| 60x50  | 150 |", "95% | 20 | float32", "vs isratnisa", "1.00x"):
        assert text in table


def test_a_wrong_result_has_no_time_and_fails_the_run(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    def one_wrong(case: Any) -> torch.Tensor:
        values = right(case)
        values[149] += 1e-3
        return values

    def unwritten(case: Any) -> torch.Tensor:
        values = torch.empty(150)
        values[:149] = right(case)[:149]
        return values

    objective = only(good=right, bad=one_wrong, lazy=unwritten, short=lambda c: right(c)[:-1])
    with pytest.raises(RowsFailed, match="3 of 4 rows are not right: bad, lazy, short"):
        run(objective, "60x50", config)
    by_name = {r.method: r for r in Store(config.records, Record).load().values()}
    assert by_name["good"].status == "ok"
    for name in ("bad", "lazy", "short"):
        assert (by_name[name].status, by_name[name].samples_ms) == ("wrong", [])
    assert by_name["bad"].wrong == by_name["lazy"].wrong == 1
    assert "bad: wrong: 1 of 150 values are outside the error bound" in capsys.readouterr().out


def test_a_method_that_fails_is_a_row_and_the_rest_go_on(config: Config) -> None:
    def fails(case: Any) -> Any:
        raise RuntimeError("no such kernel\nwith a long log")

    def greedy(case: Any) -> Any:
        raise MemoryError("99 bytes")

    def slow(case: Any) -> Any:
        time.sleep(5)

    skips = SimpleNamespace(refuses=lambda case: "not today", prepare=None)
    config.timing = Timing(max_samples=3, timeout_s=0.2)
    objective = only(fails=fails, greedy=greedy, slow=slow, skips=skips, good=right)
    with pytest.raises(RowsFailed, match="3 of 5 rows are not right: fails, greedy, slow"):
        run(objective, "60x50", config)
    outcomes = {
        r.method: (r.status, r.reason) for r in Store(config.records, Record).load().values()
    }
    assert outcomes == {
        "fails": ("failed", "RuntimeError: no such kernel"),
        "greedy": ("out_of_memory", "MemoryError: 99 bytes"),
        "slow": ("timeout", "TimedOut: took longer than timing.timeout_s=0.2"),
        "skips": ("skipped", "not today"),
        "good": ("ok", ""),
    }


def test_a_method_that_fails_while_it_is_timed_loses_its_own_row_only(config: Config) -> None:
    def prepare(case: Any) -> Any:
        calls: list[str] = []

        def run() -> torch.Tensor:
            calls.append("run")
            if len(calls) > 1:  # the first call is verified, the next ones are timed
                raise RuntimeError("tired")
            return right(case)

        return run

    objective = only(good=right, tires={"prepare": prepare})
    with pytest.raises(RowsFailed, match="1 of 2 rows are not right: tires"):
        run(objective, "60x50", config)
    records = Store(config.records, Record).load().values()
    outcomes = {r.method: (r.status, r.reason, len(r.samples_ms) >= 3) for r in records}
    assert outcomes == {
        "good": ("ok", "", True),
        "tires": ("failed", "RuntimeError: tired", False),
    }


def test_the_same_run_resumes_from_its_records(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    objective = only(a=lambda c: (calls.append("a"), right(c))[1], b=right)
    first = run(objective, "60x50", config)
    measured = len(calls)
    capsys.readouterr()
    again = run(objective, "60x50", config)
    assert len(calls) == measured
    assert [r.key for r in again] == [r.key for r in first]
    assert capsys.readouterr().out.count("| cached |") == 2
    for change in (
        {"k": 21},
        {"seed": 1},
        {"dtype": "float64"},
        {"sparsity": 0.9},
        {"force": True},
    ):
        before = len(calls)
        run(objective, "60x50", Config(**{**vars(config), **change}))
        assert len(calls) > before, change


def test_of_a_case_with_a_new_method_that_one_is_measured_and_the_table_says_so(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    objective = only(a=right)
    (old,) = run(objective, "60x50", config)
    assert "not interleaved" not in capsys.readouterr().out
    objective = only(a=right, b=right)
    both = run(objective, "60x50", config)
    assert both[0] == old
    assert both[1].session != old.session
    assert both[1].date >= old.date
    shown = capsys.readouterr().out
    assert re.search(r"\| a .*\| cached .*\| a +\|", shown)
    assert re.search(r"\| b .*\| ok .*\| b +\|", shown)
    assert "with different letters were measured at different times, not interleaved" in shown
    assert len(Store(config.records, Record).records()) == 2


def test_changed_code_is_measured_anew(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    objective = only(a=right)
    (old,) = run(objective, "60x50", config)
    monkeypatch.setattr(Code, "digest", lambda self: "edited")
    (new,) = run(objective, "60x50", config)
    assert new.key != old.key


def test_a_method_that_can_be_prepared_once_only_loses_its_own_row(config: Config) -> None:
    config.timing = Timing(max_samples=3, timeout_s=0.2)
    prepared: list[str] = []

    def once(name: str, again: Callable[[], None]) -> Any:
        def prepare(case: Any) -> Any:
            prepared.append(name)
            if prepared.count(name) > 1:
                again()
            return lambda: right(case)

        return SimpleNamespace(refuses=lambda case: None, prepare=prepare)

    def full() -> None:
        raise MemoryError("99 bytes")

    methods = {"full": once("full", full), "slow": once("slow", lambda: time.sleep(1))}
    objective = only(good=right, **methods)
    with pytest.raises(RowsFailed):
        run(objective, "60x50", config)
    records = {r.method: r for r in Store(config.records, Record).load().values()}
    assert records["good"].status == "ok"
    assert records["full"].status == "out_of_memory"
    assert records["slow"].status == "timeout"
    assert not records["full"].samples_ms
