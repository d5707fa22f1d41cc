"""Times are taken in turns, when the clock is steady, and as often as the configuration says."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from experiments.bench import timing
from experiments.bench.config import Timing
from experiments.bench.timing import Sampler


@pytest.fixture(autouse=True)
def _no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "WARM_UP_MS", 0.0)


def test_times_are_interleaved() -> None:
    order: list[str] = []
    runs = {name: lambda name=name: order.append(name) for name in "ab"}
    timing.interleaved_ms(runs, {"a": 1, "b": 1}, Timing(min_samples=12, max_samples=12), "cpu")  # type: ignore[arg-type]
    turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert turns == ["a", "b"] * 3


def test_a_round_has_as_many_samples_as_configured() -> None:
    order: list[str] = []
    runs = {name: lambda name=name: order.append(name) for name in "ab"}
    options = Timing(min_samples=6, max_samples=6, samples_per_round=2)
    timing.interleaved_ms(runs, {"a": 1, "b": 1}, options, "cpu")  # type: ignore[arg-type]
    assert "".join(order) == "aabb" * 3


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


def test_first_calls_are_counted_from_the_second_round_on_if_they_are_short() -> None:
    order: list[str] = []

    def setup(name: str, seconds: float) -> Callable[[], Callable[[], None]]:
        def call() -> None:
            order.append(name)
            time.sleep(seconds)

        return lambda: call

    setups = {"a": setup("a", 0), "b": setup("b", 0), "slow": setup("slow", 0.31)}
    taken, errors = timing.first_calls_ms(setups, 60.0, "cpu", calls=7)  # type: ignore[arg-type]
    assert not errors
    assert order == [*"aaaaaa", *"bbbbbb", "slow", *(["a"] * 6 + ["b"] * 6) * 2]
    assert {name: len(samples) for name, samples in taken.items()} == {"a": 10, "b": 10, "slow": 1}


def test_a_clock_that_falls_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of 30 ms that take 5, 3, 2 and 0.4 % more than the one before; then it is steady. A
    higher clock that is steady for 90 ms is not enough."""
    sampler = Sampler(lambda: torch.empty(0), "cpu", 10.0)
    monkeypatch.setattr(timing, "WARM_UP_MS", 60.0)
    monkeypatch.setattr(timing, "GPU_WARM_UP_MS", 60.0)
    sampler.device = "cuda"
    paces = iter([30.0, 31.5, 32.4, 33.1, 33.2, 33.2, 33.2])
    monkeypatch.setattr(sampler, "sample_ms", lambda: next(paces))
    sampler.warm_up()
    assert next(paces) == 33.2
    assert len(list(paces)) == 1
    monkeypatch.setattr(timing, "GPU_WARM_UP_MS", 150.0)
    boosted = iter([30.0, 30.0, 30.0, 36.0, 36.0, 36.0])
    monkeypatch.setattr(sampler, "sample_ms", lambda: next(boosted))
    sampler.warm_up()
    assert list(boosted) == [36.0]
    endless = iter(range(30, 1000))
    monkeypatch.setattr(sampler, "sample_ms", lambda: next(endless))
    sampler.warm_up()
    assert next(endless) < 50


def test_preparations_are_timed_as_often_as_asked() -> None:
    called: list[str] = []
    prepare = {"a": lambda: called.append("a")}
    taken, _ = timing.preparations_ms(prepare, 60.0, "cpu", calls=3)  # type: ignore[arg-type]
    assert (len(taken["a"]), len(called)) == (3, 4)


def test_uncounted_calls_last_as_long_as_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(lambda: torch.empty(0), "cpu", 10.0)
    monkeypatch.setattr(timing, "WARM_UP_MS", 60.0)
    paces = iter([3.0, 3.0, 3.0, 3.0])
    monkeypatch.setattr(sampler, "sample_ms", lambda: next(paces))
    sampler.warm_up(8.0)
    assert len(list(paces)) == 1


def test_a_method_many_times_slower_than_the_fastest_is_timed_once() -> None:
    runs = {"fast": lambda: None, "near": lambda: None, "far": lambda: None}
    options = Timing(min_samples=3, max_samples=3, slowest=20)
    taken = timing.interleaved_ms(
        runs,  # type: ignore[arg-type]
        {"fast": 1.0, "near": 19.0, "far": 21.0},
        options,
        "cpu",
    )
    assert {name: len(samples) for name, samples in taken.items()} == {
        "fast": 3,
        "near": 3,
        "far": 1,
    }


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
