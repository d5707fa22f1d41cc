"""The report of regret: the choice beside our best kernel and the best peer, by class."""

from __future__ import annotations

import csv
import io
import math
import re
from typing import Any

import pytest

from experiments.sddmm.objective import SDDMM
from experiments.sddmm.record import Record
from tests.experiments.records import record


def problem(
    nnz: int,
    chosen_ms: float,
    kernels: dict[str, float | None],
    peers: dict[str, float],
    **all_: Any,
) -> list[Record]:
    """The records of one problem: the choice is "first"; its first call takes chosen_ms + 2."""
    case = {"nnz": nnz, "family": "causal", **all_}
    ours = record("ours", 1.0, kernel="first", **case)
    ours.samples_ms, ours.first_call_ms = [chosen_ms], [chosen_ms + 2]
    records = [ours]
    for name, ms in kernels.items():
        own = record(name, ms, kernel=name, **case)
        own.samples_ms, own.first_call_ms = [] if ms is None else [ms], []
        records.append(own)
    for name, ms in peers.items():
        peer = record(name, 1.0, **case)
        peer.samples_ms, peer.first_call_ms = [ms], [2 * ms]
        records.append(peer)
    return records


RECORDS = [
    *problem(1000, 2.0, {"first": 2.1, "second": 1.6}, {"cusparse": 3.0, "torch_csr": 5.0}),
    *problem(
        300_000, 3.0, {"first": 3.3, "second": None}, {"cusparse": 2.0, "torch_csr": 2.4}, k=64
    ),
    *problem(400_000, 1.0, {"first": 1.1}, {"cusparse": 4.0}, family="tiny", heads=8),
]


def tables() -> dict[str, str]:
    return SDDMM.pages(RECORDS)


def rows_of(page: str) -> list[dict[str, str]]:
    lines = [line for line in page.splitlines() if line.startswith("|")]
    header, _, *body = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    return [dict(zip(header, cells, strict=True)) for cells in body]


def test_regret_is_the_choice_over_the_fastest_of_our_kernels() -> None:
    slow, right, tiny = csv.DictReader(io.StringIO(tables()["report.csv"]))
    assert (slow["chosen"], slow["best_kernel"]) == ("first", "second")
    assert float(slow["us"]) == pytest.approx(2000)
    assert float(slow["regret"]) == pytest.approx(1.25)
    assert (right["best_kernel"], float(right["regret"])) == ("first", 1.0)
    assert (tiny["heads"], tiny["class"]) == ("8", "tiny")


def test_the_best_peer_is_set_beside_the_choice_by_kernel_and_by_first_call() -> None:
    slow, right, _ = csv.DictReader(io.StringIO(tables()["report.csv"]))
    assert (slow["best_peer"], float(slow["peer_over_ours"])) == ("cusparse", pytest.approx(1.5))
    assert float(right["peer_over_ours"]) == pytest.approx(2 / 3)
    assert (right["first_peer"], float(right["first_us"])) == ("cusparse", pytest.approx(5000))
    assert float(right["first_peer_over_ours"]) == pytest.approx(4 / 5)


def test_every_problem_is_a_row_and_what_was_refused_is_said_below() -> None:
    page = tables()["report.md"]
    assert [(row["chosen"], row["regret"], row["best peer"]) for row in rows_of(page)] == [
        ("first", "1.25", "cusparse"), ("first", "1.00", "cusparse"), ("first", "1.00", "cusparse")
    ]  # fmt: skip
    assert "* second: skipped: no such library (1)" in page
    assert page.startswith("## a CPU, 2 threads\n\n* 2 threads of None;")


def test_the_summary_says_what_is_lost_by_class() -> None:
    page = tables()["summary.md"]
    causal, tiny, whole = rows_of(page)
    assert (causal["class"], causal["problems"], tiny["class"]) == ("causal", "2", "tiny")
    assert causal["regret, mean"] == f"{math.sqrt(1.25):.3f}"
    assert (causal["regret, largest"], tiny["regret, largest"]) == ("1.25", "1.00")
    assert (whole["class"], whole["lost to a peer"], whole["first calls lost"]) == ("all", "1", "1")
    assert (
        "**A regret above 1.15** (1)\n\n* 10x10 K=8 float32: 1.25, first 2,000 us, second 1,600"
        in page
    )
    assert "* 10x10 K=64 float32: cusparse 2,000 us, ours 3,000" in page
    lost_first = "* 10x10 K=64 float32, 300,000 nonzeros: cusparse 4,000 us, ours 5,000"
    assert f"**A peer's first call is faster** (1)\n\n{lost_first}\n" in page


def first_calls(nnz: int, k: int, first_us: float, float32_us: float | None) -> list[Record]:
    """The records of one problem in float16, of which the first calls matter."""
    records = problem(nnz, 1.0, {"first": 1.0}, {"torch_float32": 2.0}, k=k, dtype="float16")
    ours, *_, float32 = records
    ours.first_call_ms = [first_us / 1e3]
    float32.first_call_ms = [] if float32_us is None else [float32_us / 1e3]
    return records


def test_a_first_call_in_half_precision_is_held_to_torchs_in_float32() -> None:
    records = [
        *first_calls(300_000, 8, 91, 100),
        *first_calls(300_000, 16, 90, 100),
        *first_calls(299_999, 32, 200, 100),
        *first_calls(300_000, 64, 200, None),
        *problem(400_000, 1.0, {"first": 1.0}, {"torch_csr": 0.5}),
    ]
    page = SDDMM.pages(records)["summary.md"]
    (title,) = re.findall(r"\*\*(A first call in half precision.*)\*\* \(1\)", page)
    assert title.endswith("more than 0.9 times that of `torch_float32`, from 300,000 nonzeros up")
    assert (
        f"**{title}** (1)\n\n* 10x10 K=8 float16, 300,000 nonzeros: 0.91, ours 91.0 us, "
        "torch_float32 100 us\n\n"
    ) in page
    *_, whole = rows_of(page)
    assert whole["first calls above 0.9 of torch_float32"] == "1"


def test_reasons_that_differ_in_a_size_are_counted_together() -> None:
    sizes = (10**9, 3 * 10**9)
    records = [
        each
        for k, size in enumerate(sizes)
        for each in problem(50, 1.0, {"first": 1.0, "second": None}, {}, k=k)
        if not (each.method == "second" and setattr(each, "reason", f"it wants {size} bytes"))
    ]
    assert "* second: skipped: it wants ... bytes (2)" in SDDMM.pages(records)["report.md"]


def test_every_kernel_of_ours_has_its_time_beside_the_others() -> None:
    slow, right, _ = rows_of(tables()["kernel_times.md"])
    assert (slow["nnz"], slow["first"], slow["second"]) == ("1,000", "2,100", "1,600")
    assert (right["first"], right["second"]) == ("3,300", "")
    assert "cusparse" not in slow


def test_records_without_forced_kernels_have_the_usual_report() -> None:
    assert "best other / ours" in SDDMM.pages([record("ours", 1.0)])["summary.md"]


def test_kernels_and_peers_count_from_whichever_session_they_are() -> None:
    records = problem(1000, 2.0, {"second": 1.0}, {"cusparse": 3.0})
    for own in records[1:]:
        own.session = "another"
    (row,) = csv.DictReader(io.StringIO(SDDMM.pages(records)["report.csv"]))
    assert (float(row["regret"]), float(row["peer_over_ours"])) == (2.0, 1.5)


def test_problems_of_several_devices_are_told_apart() -> None:
    elsewhere = problem(1000, 4.0, {"first": 4.0}, {"cusparse": 3.0})
    for own in elsewhere:
        own.environment = {**own.environment, "device": "another CPU"}
    rows = rows_of(SDDMM.pages([*RECORDS, *elsewhere])["report.md"])
    devices = {row["us"]: row["device"] for row in rows}
    assert devices == {
        "2,000": "a CPU, 2 threads", "3,000": "a CPU, 2 threads", "1,000": "a CPU, 2 threads",
        "4,000": "another CPU, 2 threads",
    }  # fmt: skip
    assert "device" not in rows_of(tables()["report.md"])[0]
