"""A new objective is what it computes and what its rows are called; the bench does the rest."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.bench import timing
from experiments.bench.config import ReportConfig, Timing
from experiments.bench.digest import file_of
from experiments.bench.errors import RowsFailed
from experiments.bench.methods import Run
from experiments.bench.objective import Objective
from experiments.bench.record import Record
from experiments.bench.report import report
from experiments.bench.run import run
from experiments.bench.store import Store
from experiments.bench.verify import Trial, Verdict
from tests.test_layers import imports, modules


@dataclass
class SumConfig:
    """Sum n ones."""

    n: int
    records: str
    timing: Timing = field(default_factory=lambda: Timing(max_samples=3, seconds=0))
    force: bool = False


@dataclass(kw_only=True)
class SumRecord(Record):
    n: int
    method: str

    @property
    def name(self) -> str:
        return self.method

    @property
    def case(self) -> tuple[object, ...]:
        return (*self.place, self.n)


METHODS: dict[str, Any] = {
    name: SimpleNamespace(refuses=lambda x: None, prepare=lambda x, work=work: lambda: work(x))
    for name, work in {"ours": torch.sum, "loop": lambda x: sum(x), "wrong": torch.max}.items()
}


class Sums(Objective[SumConfig, Any, Tensor, SumRecord]):
    """The whole of an objective."""

    command = "sums"
    record_type = SumRecord
    baseline = "loop"
    measuring = (file_of(SumRecord),)

    def names(self) -> Sequence[str]:
        return list(METHODS)

    def methods(self, config: SumConfig) -> Mapping[str, Any]:
        return METHODS if config.n > 1 else {"ours": METHODS["ours"], "loop": METHODS["loop"]}

    def device(self, config: SumConfig) -> str:
        return "cpu"

    def label(self, config: SumConfig, choices: Mapping[str, str]) -> str:
        return f"{config.n} ones"

    def identity(self, config: SumConfig) -> dict[str, Any]:
        return {"n": config.n}

    def make_case(self, label: str, config: SumConfig, identity: Mapping[str, Any]) -> Tensor:
        return torch.ones(config.n)

    def case_fields(self, case: Tensor) -> dict[str, Any]:
        return {"n": len(case)}

    def method_fields(self, name: str, method: Any) -> dict[str, Any]:
        return {"method": name}

    def trials(self, method: Any, case: Tensor, run: Run, reference: Any) -> list[Trial]:
        return [Trial(run, lambda x: Verdict(1, int(x != len(case)), float(abs(x - len(case)))))]

    def first_call(self, method: Any, case: Tensor) -> Run:
        return lambda: method.prepare(case.clone())()

    def heading(self, config: SumConfig) -> str:
        return f"sums of {config.n}"

    def labels(self, records: Sequence[SumRecord]) -> dict[tuple[object, ...], dict[str, str]]:
        return {r.case: {"n": str(r.n)} for r in records}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SumConfig:
    monkeypatch.setattr(timing, "WARM_UP_MS", 0.0)
    return SumConfig(1, str(tmp_path / "sums.jsonl"))


def test_the_bench_knows_no_operator() -> None:
    for path in modules("experiments/bench"):
        for module, _ in imports(path):
            top, _, rest = module.partition(".")
            is_operator = top in ("sddmm", "gemm_core") and not rest.startswith("runtime")
            assert not is_operator, f"{path} imports {module}"
            assert top != "experiments" or rest.partition(".")[0] in ("bench", "pictures"), module


def test_it_is_measured_stored_and_resumed(
    config: SumConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    records = run(Sums(), "1 ones", config)
    assert [(r.name, r.status) for r in records] == [("ours", "ok"), ("loop", "ok")]
    assert all(r.samples_ms and r.first_call_ms and r.prepare_ms is not None for r in records)
    shown = capsys.readouterr().out
    assert shown.startswith("sums of 1\n")
    assert "| n | method | status |" in shown
    assert "vs loop" in shown
    assert run(Sums(), "1 ones", config) == records
    assert capsys.readouterr().out.count("| cached |") == 2
    assert Store(config.records, SumRecord).records() == records


def test_a_wrong_method_has_no_time(config: SumConfig) -> None:
    config.n = 5
    with pytest.raises(RowsFailed, match="1 of 3 rows are not right: wrong"):
        run(Sums(), "5 ones", config)
    by_name = {r.name: r for r in Store(config.records, SumRecord).records()}
    assert (by_name["wrong"].status, by_name["wrong"].samples_ms) == ("wrong", [])
    assert by_name["wrong"].reason == "1 of 1 values are outside the error bound"


def test_it_is_reported_and_two_of_its_commits_are_compared(
    config: SumConfig, tmp_path: Path
) -> None:
    (ours, loop) = run(Sums(), "1 ones", config)
    output = tmp_path / "out"
    report(Sums(), ReportConfig([config.records], str(output), plots=False))
    text = (output / "report.md").read_text()
    assert f"## {ours.place_name.split(',')[0]}" in text
    assert "| n | method | time ms |" in text
    assert "best other / ours" in (output / "summary.md").read_text()
    rows = list(csv.DictReader(io.StringIO((output / "report.csv").read_text())))
    assert [(row["n"], row["method"]) for row in rows] == [("1", "ours"), ("1", "loop")]
    assert float(rows[0]["speedup_over_loop"]) == loop.median_ms / ours.median_ms
    for commit in ("a" * 40, "b" * 40):
        ours.environment = {"device": "a CPU", "commit": commit}
        Store(config.records, SumRecord).append(ours)
    commits = ["aaaaaaa", "bbbbbbb"]
    report(Sums(), ReportConfig([config.records], str(output), compare=commits))
    assert "| ours   |" in (output / "compare.md").read_text()
