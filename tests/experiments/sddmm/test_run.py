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

from experiments.bench import config as schema
from experiments.bench import measure, run, timing
from experiments.bench.config import Config, Fem, Timing, Uniform
from experiments.bench.errors import ExperimentError, RowsFailed
from experiments.bench.record import Record
from experiments.bench.store import Store
from experiments.sddmm import methods
from experiments.sddmm.case import device_of, make_case
from experiments.sddmm.verify import Truth
from sddmm.backends.cuda.backend import CudaBackend


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_SETTLE_MS", 0.0)
    monkeypatch.setattr(timing, "_GPU_SETTLE_MS", 0.0)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        matrix=Uniform(rows=60, cols=50),
        k=20,
        timing=Timing(min_samples=3, max_samples=4, seconds=0.01),
        records=str(tmp_path / "records.jsonl"),
    )


def install(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    """Make these the only methods: name -> run(case), or a method."""
    made = {
        name: f
        if hasattr(f, "prepare")
        else SimpleNamespace(refuses=lambda case: None, prepare=lambda case, f=f: lambda: f(case))
        for name, f in functions.items()
    }
    monkeypatch.setattr(methods, "select", lambda chosen: made)


def right(case: Any) -> torch.Tensor:
    values: torch.Tensor = (case.a @ case.b)[case.pattern.row_ids, case.pattern.col_indices]
    return values


def test_every_method_is_verified_timed_and_recorded(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    records = run.run("60x50", config)
    assert [r.method for r in records] == methods.names()
    lines = [json.loads(line) for line in Path(config.records).read_text().splitlines()]
    assert {line["method"] for line in lines} == set(methods.names())
    assert {r.method: r.reason for r in records if r.status == "skipped"} == {
        "cusparse": "cuSPARSE computes on a GPU, not on a CPU",
        "zcx": "it is a GPU kernel",
    }
    for record in records:
        if record.status == "skipped":
            continue
        assert record.status == "ok"
        assert (record.checked, record.wrong) == (150, 0)
        assert record.error is not None
        assert record.error < 1e-6
        assert record.prepare_ms is not None
        assert len(record.first_call_ms) >= 10
        assert min(record.first_call_ms) > 0
        assert 3 <= len(record.samples_ms) <= 4
        assert record.environment["libraries"]["torch"] == version("torch")
        assert record.environment["source"]
    table = capsys.readouterr().out
    for text in ("| 60x50  | 150 |", "95% | 20 | float32", "vs isratnisa", "1.00x"):
        assert text in table


def test_a_wrong_result_has_no_time_and_fails_the_run(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def one_wrong(case: Any) -> torch.Tensor:
        values = right(case)
        values[149] += 1e-3
        return values

    def unwritten(case: Any) -> torch.Tensor:
        values = torch.empty(150)
        values[:149] = right(case)[:149]
        return values

    install(monkeypatch, good=right, bad=one_wrong, lazy=unwritten, short=lambda c: right(c)[:-1])
    with pytest.raises(RowsFailed, match="3 of 4 rows are not right: bad, lazy, short"):
        run.run("60x50", config)
    by_name = {r.method: r for r in Store(config.records, Record).load().values()}
    assert by_name["good"].status == "ok"
    for name in ("bad", "lazy", "short"):
        assert (by_name[name].status, by_name[name].samples_ms) == ("wrong", [])
    assert by_name["bad"].wrong == by_name["lazy"].wrong == 1
    assert "bad: wrong: 1 of 150 values are outside the error bound" in capsys.readouterr().out


def test_a_method_that_fails_is_a_row_and_the_rest_go_on(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(case: Any) -> Any:
        raise RuntimeError("no such kernel\nwith a long log")

    def greedy(case: Any) -> Any:
        raise MemoryError("99 bytes")

    def slow(case: Any) -> Any:
        time.sleep(5)

    skips = SimpleNamespace(refuses=lambda case: "not today", prepare=None)
    config.timing = Timing(max_samples=3, timeout_s=0.2)
    install(monkeypatch, fails=fails, greedy=greedy, slow=slow, skips=skips, good=right)
    with pytest.raises(RowsFailed, match="3 of 5 rows are not right: fails, greedy, slow"):
        run.run("60x50", config)
    told = {r.method: (r.status, r.reason) for r in Store(config.records, Record).load().values()}
    assert told == {
        "fails": ("failed", "RuntimeError: no such kernel"),
        "greedy": ("out_of_memory", "MemoryError: 99 bytes"),
        "slow": ("timeout", "TimedOut: took longer than timing.timeout_s=0.2"),
        "skips": ("skipped", "not today"),
        "good": ("ok", ""),
    }


def test_a_method_that_fails_while_it_is_timed_loses_its_own_row_only(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tires(case: Any) -> torch.Tensor:
        if timed:
            raise RuntimeError("tired")
        return right(case)

    timed: list[str] = []
    interleaved = measure.interleaved_ms

    def watched(runs: Any, *more: Any) -> Any:
        timed.append("now")
        return interleaved(runs, *more)

    monkeypatch.setattr(measure, "interleaved_ms", watched)
    install(monkeypatch, good=right, tires=tires)
    with pytest.raises(RowsFailed, match="1 of 2 rows are not right: tires"):
        run.run("60x50", config)
    records = Store(config.records, Record).load().values()
    told = {r.method: (r.status, r.reason, len(r.samples_ms) >= 3) for r in records}
    assert told == {
        "good": ("ok", "", True),
        "tires": ("failed", "RuntimeError: tired", False),
    }


def test_the_same_run_resumes_from_its_records(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    install(monkeypatch, a=lambda c: (calls.append("a"), right(c))[1], b=right)
    first = run.run("60x50", config)
    measured = len(calls)
    capsys.readouterr()
    again = run.run("60x50", config)
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
        run.run("60x50", Config(**{**vars(config), **change}))
        assert len(calls) > before, change


def test_of_a_case_with_a_new_method_that_one_is_measured_and_the_table_says_so(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, a=right)
    (old,) = run.run("60x50", config)
    assert "not interleaved" not in capsys.readouterr().out
    install(monkeypatch, a=right, b=right)
    both = run.run("60x50", config)
    assert both[0] == old
    assert both[1].session != old.session
    assert both[1].date >= old.date
    shown = capsys.readouterr().out
    assert re.search(r"\| a .*\| cached .*\| a +\|", shown)
    assert re.search(r"\| b .*\| ok .*\| b +\|", shown)
    assert "with different letters were measured at different times, not interleaved" in shown
    assert len(Store(config.records, Record).records()) == 2


def test_changed_code_is_measured_anew(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, a=right)
    (old,) = run.run("60x50", config)
    monkeypatch.setattr(run, "measured_code", lambda *files: "edited")
    (new,) = run.run("60x50", config)
    assert new.key != old.key


def test_times_are_interleaved() -> None:
    order: list[str] = []
    runs = {name: lambda name=name: order.append(name) for name in "ab"}
    timing.interleaved_ms(runs, {"a": 1, "b": 1}, Timing(min_samples=12, max_samples=12), "cpu")  # type: ignore[arg-type]
    turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert turns == ["a", "b"] * 3


def test_preparations_are_timed_in_turns_whose_first_is_not_counted() -> None:
    order: list[str] = []

    def slow() -> None:
        order.append("slow")
        time.sleep(0.12)

    quick = {name: lambda name=name: order.append(name) for name in "ab"}
    taken, errors = timing.preparations_ms({**quick, "slow": slow}, 60.0, "cpu")  # type: ignore[dict-item]
    assert not errors
    assert order == [*"aaaaaa", *"bbbbbb", "slow", *(["a"] * 6 + ["b"] * 6) * 3]
    assert {name: len(samples) for name, samples in taken.items()} == {"a": 20, "b": 20, "slow": 1}
    assert taken["slow"][0] >= 120


def test_a_method_that_can_be_prepared_once_only_loses_its_own_row(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    install(monkeypatch, good=right, **methods)
    with pytest.raises(RowsFailed):
        run.run("60x50", config)
    records = {r.method: r for r in Store(config.records, Record).load().values()}
    assert records["good"].status == "ok"
    assert records["full"].status == "out_of_memory"
    assert records["slow"].status == "timeout"
    assert not records["full"].samples_ms


def test_a_clock_that_falls_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of 30 ms that take 5, 3, 2 and 0.4 % more than the one before; then it is steady. A
    higher clock that is steady for 90 ms is not enough."""
    sampler = timing._Sampler(lambda: torch.empty(0), "cpu", 10.0)
    monkeypatch.setattr(timing, "_SETTLE_MS", 60.0)
    monkeypatch.setattr(timing, "_GPU_SETTLE_MS", 60.0)
    sampler.device = "cuda"
    paces = iter([30.0, 31.5, 32.4, 33.1, 33.2, 33.2, 33.2])
    monkeypatch.setattr(sampler, "sample_ms", lambda: next(paces))
    sampler.settle()
    assert next(paces) == 33.2
    assert len(list(paces)) == 1
    monkeypatch.setattr(timing, "_GPU_SETTLE_MS", 150.0)
    boosted = iter([30.0, 30.0, 30.0, 36.0, 36.0, 36.0])
    monkeypatch.setattr(sampler, "sample_ms", lambda: next(boosted))
    sampler.settle()
    assert list(boosted) == [36.0]
    endless = iter(range(30, 1000))
    monkeypatch.setattr(sampler, "sample_ms", lambda: next(endless))
    sampler.settle()
    assert next(endless) < 50


def test_a_slow_method_is_timed_min_samples_times_and_a_quick_one_more() -> None:
    runs = {
        "slow": lambda: time.sleep(0.02),
        "quick": lambda: None,
        "endless": lambda: time.sleep(0.02),
    }
    taken = timing.interleaved_ms(
        runs,  # type: ignore[arg-type]
        {"slow": 20, "quick": 0, "endless": 10_001},
        Timing(min_samples=2, max_samples=30, seconds=0.01),
        "cpu",
    )
    assert len(taken["slow"]) == 2
    assert len(taken["quick"]) == 30
    assert len(taken["endless"]) == 1
    assert min(taken["slow"]) >= 20


def test_large_problems_are_verified_on_a_sample_with_both_ends(config: Config) -> None:
    case = make_case("x", config)
    values = right(case)
    truth = Truth(case, full_work=20 * 30)
    assert truth.judge(values).checked == 30
    for end in (0, -1):
        broken = values.clone()
        broken[end] = torch.nan
        verdict = truth.judge(broken)
        assert verdict.wrong >= 1
        assert verdict.error == float("inf")


def test_the_error_is_relative_to_the_norms(config: Config) -> None:
    case = make_case("x", config)
    values = right(case).double()
    i, j = int(case.pattern.row_ids[0]), int(case.pattern.col_indices[0])
    values[0] += 1e-2 * float(case.a[i].norm() * case.b[:, j].norm())
    assert Truth(case).judge(values).error == pytest.approx(1e-2, rel=1e-3)


def test_a_matrix_larger_than_memory_is_refused_with_the_bytes_wanted(config: Config) -> None:
    config.matrix = Uniform(rows=10**7, cols=10**7)
    with pytest.raises(ExperimentError, match=r"matrix big .* wants 3200\d{11} bytes"):
        run.run("big", config)
    config.matrix = Uniform(rows=10**12, cols=1, nnz=1)
    with pytest.raises(ExperimentError, match=r"wants \d+ bytes"):
        run.run("tall", config)


def test_auto_takes_the_gpu_where_our_kernels_run(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device_of(config) == ("cpu" if CudaBackend().available() else "cuda")
    monkeypatch.setattr(CudaBackend, "available", lambda self: None)
    assert device_of(config) == "cuda"
    config.device = "cpu"
    assert device_of(config) == "cpu"


def test_sparsity_of_a_matrix_that_has_its_own_is_refused(config: Config) -> None:
    config.matrix, config.sparsity = Fem(nx=2, ny=2, nz=2), 0.5
    with pytest.raises(ExperimentError, match=r"sparsity=0.5 applies to uniform matrices"):
        run.run("fem", config)


def test_every_source_knows_its_size_before_it_loads(tmp_path: Path) -> None:
    import scipy.io

    path = tmp_path / "m.mtx"
    scipy.io.mmwrite(path, schema.Uniform(rows=9, cols=8, nnz=12).load())
    sources = [
        Uniform(rows=30, cols=40, sparsity=0.9),
        schema.Rmat(rows=30, cols=40, nnz=100),
        schema.PowerLaw(rows=30, cols=40, nnz=100),
        schema.Banded(rows=30, cols=40, bandwidth=3),
        schema.BlockDiagonal(rows=30, cols=40, block=8),
        Fem(nx=2, ny=3, nz=4),
        schema.File(path=str(path)),
    ]
    assert {type(s) for s in sources} == set(schema.SOURCES.values())
    for source in sources:
        rows, cols, nnz = source.size()
        matrix = source.load()
        assert matrix.shape == (rows, cols)
        assert nnz is not None
        assert matrix.nnz <= nnz
