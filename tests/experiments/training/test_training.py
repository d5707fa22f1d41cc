"""A training step is verified, measured and reported beside its peers."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from experiments.bench import timing
from experiments.bench.config import Timing
from experiments.bench.run import run
from experiments.bench.sources import Uniform
from experiments.sddmm.config import Config
from experiments.sddmm.problems import problems_of
from experiments.training.case import Case, Step, make_case
from experiments.training.methods import METHODS, gather_sum, ours_eager, sampled_addmm
from experiments.training.objective import TRAINING
from experiments.training.record import Record
from experiments.training.verify import Reference
from tests.conftest import ROOT
from tests.experiments.spmm.test_objective import CLASSES

STEPS = ["ours", "sampled_addmm", "gather_sum"]


def case_of(dtype: str = "float32", heads: int = 1, k: int = 33, device: str = "cpu") -> Case:
    config = Config(
        objective="training", matrix=Uniform(rows=50, cols=70, nnz=400), k=k, dtype=dtype,
        heads=heads, device=device,
    )  # fmt: skip
    return make_case("test", config)


def definition(case: Case) -> Step:
    a, b_t = case.sampled.a.double(), case.sampled.b.mT.double()
    rows, cols = case.pattern.row_ids.long(), case.pattern.col_indices.long()
    W = torch.zeros(*a.shape[:-1], case.n, dtype=torch.float64)
    W[..., rows, cols] = case.grad.double()
    return Step((a @ b_t.mT)[..., rows, cols], W @ b_t, W.mT @ a)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("heads", [1, 3])
def test_each_method_is_right(name: str, heads: int) -> None:
    case = case_of(heads=heads)
    method = METHODS.select([name])[name]
    assert method.refuses(case) is None
    reference = TRAINING.reference(case)
    for trial in TRAINING.trials(method, case, method.prepare(case), reference):
        step = trial.call()
        for got, expected in zip(step, definition(case), strict=True):
            torch.testing.assert_close(got.double(), expected, atol=1e-4, rtol=1e-4)
        verdict = trial.check(step)
        assert (verdict.checked, verdict.wrong) == (heads * (400 + 50 * 33 + 70 * 33), 0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS.names())
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("heads", [1, 3])
def test_each_method_is_right_on_a_gpu(name: str, dtype: str, heads: int) -> None:
    case = case_of(dtype, heads, k=64, device="cuda")
    method = METHODS.select([name])[name]
    assert method.refuses(case) is None
    for trial in TRAINING.trials(method, case, method.prepare(case), TRAINING.reference(case)):
        assert trial.check(trial.call()).wrong == 0


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_wrong_value_or_gradient_is_noticed(part: int) -> None:
    case = case_of()
    step = [x.float() for x in definition(case)]
    assert Reference(case).check(Step(*step)).wrong == 0
    step[part].view(-1)[0] += 1
    verdict = Reference(case).check(Step(*step))
    assert verdict.wrong == 1
    assert verdict.error > 1e-3


def test_half_types_are_computed_by_ours_and_by_gathering() -> None:
    case = case_of("float16")
    reference = Reference(case)
    assert reference.check(METHODS.select(["ours"])["ours"].prepare(case)()).wrong == 0
    assert reference.check(gather_sum.prepare(case)(), partial_sums_round=True).wrong == 0
    assert sampled_addmm.refuses(case) == "torch.sparse.sampled_addmm has no float16"
    assert ours_eager.refuses(case) == "on a CPU it is the method ours"


def test_matrices_on_which_torch_ends_the_process_are_refused() -> None:
    source = Uniform(rows=1_000_000, cols=1_000_000, nnz=10)
    case = make_case("large", Config(objective="training", matrix=source, k=1, device="cpu"))
    assert str(sampled_addmm.refuses(case)).startswith("its backward ends the process with SIGFPE")


def test_a_case_is_measured_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(timing, "WARM_UP_MS", 0.0)
    config = Config(
        objective="training", matrix=Uniform(rows=40, cols=50), k=16, device="cpu",
        timing=Timing(max_samples=3, seconds=0.001, calls=1), records=str(tmp_path / "r.jsonl"),
    )  # fmt: skip
    records = {record.method: record for record in run(TRAINING, "40x50", config)}
    assert {name for name, r in records.items() if r.status == "ok"} == {*STEPS, "forward"}
    assert records["ours"].first_call_ms
    assert not records["forward"].first_call_ms
    assert "| 40x50  | 100 |" in capsys.readouterr().out


def record(method: str, us: float, **changes: Any) -> Record:
    own: dict[str, Any] = {"family": "uniform", "k": 8, **changes}
    return Record(
        key=f"{method}-{own['k']}", session="s", status="ok", matrix="10x10", definition={}, m=10,
        n=10, nnz=50, dtype="float32", seed=0, method=method, samples_ms=[us / 1e3],
        first_call_ms=[us / 1e2], environment={"device": "a CPU", "threads": 2}, **own,
    )  # fmt: skip


def test_a_step_may_take_so_many_times_row_gather_or_on_masks_the_forward() -> None:
    times = {"row_gather": 10, "forward": 8, "ours_eager": 400, "gather_sum": 500}
    records = [
        record("ours", 100, peak_bytes=2_000_000),
        *(record(name, us) for name, us in times.items()),
        record("ours", 100, family="window", k=9),
        *(record(name, us, family="window", k=9) for name, us in times.items()),
    ]  # fmt: skip
    pages = TRAINING.pages(records)
    even, mask = csv.DictReader(io.StringIO(pages["report.csv"]))
    assert (float(even["limit_us"]), float(mask["limit_us"])) == (105, 40)
    assert (even["best_peer"], float(even["peer_over_ours"])) == ("gather_sum", 5.0)
    assert (even["peak_bytes"], mask["peak_bytes"]) == ("2000000", "")
    assert "**Above the limit** (1)\n\n* 10x10 K=9 float32: 100 us of 40.0" in pages["summary.md"]
    assert "| 2.0 |" in " ".join(pages["report.md"].split())


def test_the_study_covers_patterns_heads_and_dtypes() -> None:
    loaded: Any = OmegaConf.to_container(OmegaConf.load(ROOT / "conf/study/training.yaml"))
    config = Config(objective=loaded["objective"], problems=loaded["problems"])
    configs = [problem for _, problem in problems_of(config)]
    assert 18 <= len(configs) <= 25
    assert {c.family for c in configs} == CLASSES
    assert {c.heads for c in configs} == {1, 4, 8}
    assert {c.dtype for c in configs} == {"float16", "bfloat16", "float32"}
