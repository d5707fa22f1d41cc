"""The first call: the whole public call of a method, on indices that nothing has seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import sddmm
from experiments.bench import timing
from experiments.bench.config import Timing
from experiments.bench.errors import RowsFailed
from experiments.bench.run import run
from experiments.bench.sources import Uniform
from experiments.bench.store import Store
from experiments.sddmm.case import make_case
from experiments.sddmm.config import Config
from experiments.sddmm.methods import METHODS
from experiments.sddmm.objective import SDDMM
from experiments.sddmm.record import Record
from experiments.sddmm.verify import Reference
from tests.experiments.only import only, right


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(timing, "WARM_UP_MS", 0.0)
    return Config(
        matrix=Uniform(rows=60, cols=50),
        k=20,
        device="cpu",
        timing=Timing(min_samples=3, max_samples=4, seconds=0.01),
        records=str(tmp_path / "records.jsonl"),
    )


def test_the_first_call_is_preparation_and_run_on_indices_never_seen(config: Config) -> None:
    seen: list[torch.Tensor] = []  # kept, so that no two have the same address

    def prepare(case: Any) -> Any:
        seen.append(case.pattern.col_indices)
        time.sleep(0.02)
        return lambda: (time.sleep(0.03), right(case))[1]

    objective = only(a={"prepare": prepare})
    (record,) = run(objective, "60x50", config)
    assert record.status == "ok"
    assert 3 <= len(record.first_call_ms) < 20  # a quick one has 20
    assert min(record.first_call_ms) >= 50
    assert record.prepare_ms is not None
    assert 20 <= record.prepare_ms < record.median_first_call_ms
    addresses = [indices.data_ptr() for indices in seen]
    of_the_case = max(set(addresses), key=addresses.count)
    copies = [address for address in addresses if address != of_the_case]
    assert len(copies) > len(record.first_call_ms)
    assert len(copies) == len(set(copies))


def test_the_first_call_of_a_method_with_a_public_call_is_that_call_without_its_arguments(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[bool] = []  # not empty while something is timed
    events: list[tuple[str, bool]] = []
    elapsed_ms = timing.elapsed_ms

    def watched(work: Callable[[], object], device: str) -> float:
        timed.append(True)
        try:
            return elapsed_ms(work, device)
        finally:
            timed.pop()

    def method(result: Callable[[Any], torch.Tensor]) -> Any:
        def public_call(case: Any) -> Any:
            events.append(("arguments", bool(timed)))
            return lambda: (events.append(("call", bool(timed))), result(case))[1]

        return {"prepare": lambda case: lambda: right(case), "public_call": public_call}

    monkeypatch.setattr(timing, "elapsed_ms", watched)
    monkeypatch.setattr(timing, "_FIRST_CALLS_MS", 60_000.0)  # also on a busy machine
    objective = only(good=method(right), bad=method(lambda case: right(case) + 1))
    with pytest.raises(RowsFailed, match="1 of 2 rows are not right: bad"):
        run(objective, "60x50", config)
    records = {r.method: r for r in Store(config.records, Record).load().values()}
    assert (records["bad"].status, records["bad"].first_call_ms) == ("wrong", [])
    assert ("arguments", True) not in events
    assert events.count(("call", True)) >= len(records["good"].first_call_ms) == 20


def test_a_method_many_times_slower_than_the_fastest_is_not_prepared_for_timing(
    config: Config,
) -> None:
    def slowly(case: Any) -> torch.Tensor:
        time.sleep(0.5)
        return right(case)

    config.timing.slowest, config.timing.calls = 5, 2
    quick, slow = run(only(quick=right, slow=slowly), "60x50", config)
    assert (len(quick.first_call_ms), len(slow.first_call_ms)) == (2, 0)
    assert len(quick.samples_ms) >= 3 > len(slow.samples_ms) == 1  # 3 to 4, as time allows
    assert (quick.status, slow.status, slow.prepare_ms) == ("ok", "ok", None)


def test_a_method_whose_verified_runs_were_interrupted_is_timed_as_often_as_any(
    config: Config,
) -> None:
    calls: list[None] = []
    values = right(make_case("x", config))

    def at_once(case: Any) -> torch.Tensor:
        """Without other threads, which a busy machine keeps waiting."""
        return values.clone()

    def often_interrupted(case: Any) -> torch.Tensor:
        calls.append(None)
        if len(calls) <= 3:  # verified twice, and run once more
            time.sleep(0.5)
        return at_once(case)

    config.timing.slowest = 200
    records = run(only(quick=at_once, unlucky=often_interrupted), "60x50", config)
    assert all(len(record.samples_ms) >= 3 for record in records)
    assert all(record.first_call_ms for record in records)


def test_ours_is_called_as_a_user_calls_it(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    ours = METHODS.select(["ours"])["ours"]
    public = sddmm.sddmm
    monkeypatch.setattr(
        sddmm, "sddmm", lambda S, *a, **options: (called.append(S), public(S, *a, **options))[1]
    )
    case = make_case("x", config)
    values = SDDMM.first_call(ours, case)()
    assert Reference(case).check(values).wrong == 0
    (S,) = called
    assert S.layout is torch.sparse_csr
    assert S.col_indices().data_ptr() != case.pattern.col_indices.data_ptr()
