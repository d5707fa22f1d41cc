"""Attention is measured like SpMM: records, reports with their limits, and the studies."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments.attention.forced import ForcedKernel
from experiments.attention.methods import MASKS
from experiments.attention.objective import ATTENTION
from experiments.attention.record import Record
from experiments.bench import timing
from experiments.bench.config import Timing
from experiments.bench.errors import RowsFailed
from experiments.bench.run import run
from experiments.bench.sources import Uniform
from experiments.bench.store import Store
from experiments.sddmm.config import Config
from experiments.sddmm.problems import problems_of
from sddmm.backends.cuda.kernels.registry import ATTENTION_KERNELS
from sddmm.testing import emulated_gpu
from tests.conftest import ROOT
from tests.experiments.attention.cases import case_of


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(timing, "WARM_UP_MS", 0.0)
    return Config(
        objective="attention", matrix=Uniform(rows=40, cols=50), k=16, device="cpu",
        methods=["ours", "flex", "gather_scatter"],
        timing=Timing(max_samples=3, seconds=0.001, calls=1), records=str(tmp_path / "r.jsonl"),
    )  # fmt: skip


def test_methods_are_verified_timed_and_recorded(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, flex, gathered = run(ATTENTION, "40x50", config)
    assert [r.status for r in (ours, flex, gathered)] == ["ok", "skipped", "ok"]
    assert (ours.checked, ours.wrong, ours.backward) == (40 * 16, 0, False)
    assert ours.first_call_ms
    assert ours.result_bytes == 4 * (2 * 40 + 2 * 50) * 16 + 4 * 40
    assert "| 40x50  | 100 |" in capsys.readouterr().out
    config.backward = True
    step, _, _ = run(ATTENTION, "40x50", config)
    assert step.checked == 2 * (40 + 50) * 16
    assert (step.key == ours.key, step.case == ours.case) == (False, False)


def test_a_method_that_returns_wrong_numbers_has_no_time(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiments.attention.methods import gather_scatter

    monkeypatch.setattr(gather_scatter, "LEAST_SUM", 1.0)
    records = run_unless_failed(config)
    gathered = records["gather_scatter"]
    assert (records["ours"].status, gathered.status) == ("ok", "wrong")
    assert not gathered.samples_ms
    assert gathered.reason.endswith("values are outside the error bound")


def run_unless_failed(config: Config) -> dict[str, Record]:

    with pytest.raises(RowsFailed, match="not right: gather_scatter"):
        run(ATTENTION, "40x50", config)
    return {record.method: record for record in Store(config.records, Record).records()}


def test_the_planners_choice_is_recorded() -> None:
    case = case_of(dtype="float16", k=32)
    record = of("ours", 1.0)
    with emulated_gpu():
        ATTENTION.annotate(record, ATTENTION.methods(Config(objective="attention"))["ours"], case)
    assert record.kernel in ("attention_gather", "attention_tile")
    assert record.kernel in record.predicted_us


@pytest.mark.parametrize("kernel", list(ATTENTION_KERNELS)[:1])
def test_a_kernel_by_its_name_computes_result_and_gradients(kernel: str) -> None:
    method = ForcedKernel(kernel)
    case = case_of(dtype="float16", heads=2, backward=True)
    with emulated_gpu():
        assert method.refuses(case) is None
        (trial,) = ATTENTION.trials(method, case, method.prepare(case), ATTENTION.reference(case))
        verdict = trial.check(trial.call())
        assert (verdict.checked, verdict.wrong) == (4 * 2 * 40 * 16, 0)


@pytest.mark.parametrize("kernel", list(ATTENTION_KERNELS))
def test_tile_kernels_are_not_measured_where_no_tile_is_dense(kernel: str) -> None:
    case = case_of(Uniform(rows=300, cols=300, nnz=100), dtype="float16")
    with emulated_gpu():
        reason = ForcedKernel(kernel).refuses(case)
    sparse = "not measured: few tiles are dense where 1 in 500 positions is stored"
    assert reason == (sparse if ATTENTION_KERNELS[kernel].tile_sizes else None)


def of(method: str, us: float | None, **changes: Any) -> Record:
    own: dict[str, Any] = {"family": "uniform", "k": 8, **changes}
    return Record(
        key=f"{method}-{own['k']}", session="s", status="ok" if us else "skipped",
        reason="" if us else "too many: 123456789 bytes", matrix="10x10", definition={}, m=10, n=10,
        nnz=50, dtype="float32", seed=0, method=method, samples_ms=[us / 1e3] if us else [],
        first_call_ms=[us / 1e2] if us else [], environment={"device": "a CPU", "threads": 2},
        **own,
    )  # fmt: skip


def beside(us: float, **changes: Any) -> list[Record]:
    times = {"row_gather": 10.0, "flex": 20.0, "parts": 90.0, "gather_scatter": None}
    return [of("ours", us, **changes)] + [of(name, t, **changes) for name, t in times.items()]


def test_attention_is_held_to_row_gather_and_on_masks_to_flex_attention() -> None:
    records = [
        *beside(25.0),
        *beside(25.0, backward=True, k=9),
        *beside(25.0, family="window", k=10),
        *beside(31.0, family="window", k=11, backward=True),
    ]
    rows = list(csv.DictReader(io.StringIO(ATTENTION.pages(records)["report.csv"])))
    assert [(r["yardstick"], float(r["over_yardstick"]), float(r["limit"])) for r in rows] == [
        ("row_gather", 2.5, 2.4),
        ("flex", 1.25, 1.5),
        ("row_gather", 2.5, 8.5),
        ("flex", 1.55, 1.5),
    ]
    pages = ATTENTION.pages(records)
    assert "**Above the limit** (2)\n\n* 10x10 d=8 float32: 2.50 of 2.4" in pages["summary.md"]
    assert "**A peer is faster by more than 3 %** (4)" in pages["summary.md"]
    assert "* 10x10 d=11 float32, with gradients: 1.55 of 1.5" in pages["summary.md"]
    assert "`gather_scatter` (PyTorch Geometric's TransformerConv) is a re" in pages["report.md"]
    assert "gather_scatter: skipped: too many: ... bytes (4)" in pages["report.md"]


def test_the_memory_of_a_step_is_told_without_its_results() -> None:
    records = beside(25.0, backward=True, peak_bytes=70_000_000, result_bytes=5_000_000)
    records[3].peak_bytes = 90_000_000
    records[3].compile_ms, records[2].prepare_ms, records[2].compile_ms = None, 1.0, 2000.0
    pages = ATTENTION.pages(records)
    (row,) = csv.DictReader(io.StringIO(pages["report.csv"]))
    assert (float(row["besides_mb"]), row["parts_peak_bytes"]) == (65.0, "90000000")
    assert float(row["flex_prepare_us"]) == 2_001_000
    assert (
        "besides the results** (1)\n\n* 10x10 d=8 float32, with gradients: 65.0 MB"
        in pages["summary.md"]
    )


def test_the_choice_is_compared_with_each_of_our_kernels() -> None:
    times = {"attention_gather": 20.0, "attention_tile": 30.0}
    forced = [of(name, us, kernel=name) for name, us in times.items()]
    records = [of("ours", 30.0, kernel="attention_tile"), *forced]
    pages = ATTENTION.pages(records)
    (row,) = csv.DictReader(io.StringIO(pages["report.csv"]))
    assert (row["best_kernel"], float(row["regret"]), row["best_peer"]) == (
        "attention_gather", 1.5, "",
    )  # fmt: skip
    assert "**A regret above 1.1** (1)\n\n* 10x10 d=8 float32: 1.50" in pages["summary.md"]


def test_a_report_has_labels_commands_and_a_last_sentence() -> None:
    records = [*beside(25.0), *beside(30.0, backward=True)]
    labels = ATTENTION.labels(records)
    assert [labels[r.case]["backward"] for r in (records[0], records[-1])] == ["", "with"]
    assert all(labels[r.case]["d"] == "8" for r in records)
    assert "flex" not in ATTENTION.finding(records[:2])
    assert ATTENTION.finding(records).startswith("ours is the fastest on 0 of 2 cases")
    assert ATTENTION.role(records[1]) == "yardstick"
    assert "roofline" in ATTENTION.pictures(records[:5], "")
    assert "roofline" not in ATTENTION.pictures(records, "")


def test_gradients_are_of_attention_alone() -> None:
    with pytest.raises(ValueError, match="backward must be false but in attention"):
        Config(matrix=Uniform(rows=4, cols=5), backward=True)


CLASSES = {"uniform", "power law", "rmat", "large graph", "kNN", "molecules", "hubs", *MASKS}


@pytest.mark.parametrize(("name", "least", "most"), [("", 43, 48), ("_training", 22, 27)])
def test_the_studies_cover_patterns_sizes_heads_and_dtypes(
    name: str, least: int, most: int
) -> None:
    loaded: Any = OmegaConf.to_container(OmegaConf.load(ROOT / f"conf/study/attention{name}.yaml"))
    assert (loaded["objective"], loaded.get("backward", False)) == ("attention", bool(name))
    config = Config(objective="attention", problems=loaded["problems"], backward=bool(name))
    configs = [problem for _, problem in problems_of(config)]
    assert least <= len(configs) <= most
    assert len({(repr(c.matrix), c.k, c.dtype, c.heads) for c in configs}) == len(configs)
    assert {c.family for c in configs} == CLASSES
    assert {c.heads for c in configs} == {1, 4, 8}
    assert {c.k for c in configs} == {16, 32, 64, 128, 256}
    assert {c.dtype for c in configs} == {"float16", "bfloat16", "float32"}
    assert max(c.matrix.size().nnz for c in configs if c.family not in MASKS) == 57_000_000
    on_masks = sum(c.family in MASKS for c in configs)
    assert on_masks <= 15  # each is compiled for FlexAttention
