"""Our kernels as methods, predictions in the records, and products of several heads."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.attention.objective import ATTENTION
from experiments.bench import timing
from experiments.bench.config import Timing
from experiments.bench.run import run, run_all
from experiments.bench.sources import Uniform
from experiments.sddmm import ahead
from experiments.sddmm.ahead import run_on_each
from experiments.sddmm.case import Case, make_case
from experiments.sddmm.config import Config
from experiments.sddmm.explanation import chosen_kernel, predictions
from experiments.sddmm.forced import ForcedKernel, forced_kernels
from experiments.sddmm.methods import METHODS
from experiments.sddmm.objective import SDDMM
from experiments.sddmm.verify import Reference
from experiments.spmm.objective import SPMM
from experiments.training.objective import TRAINING
from sddmm.backends.cuda.kernels.registry import ATTENTION_KERNELS, KERNELS
from sddmm.testing import emulated_gpu
from tests.experiments.only import only


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(timing, "WARM_UP_MS", 0.0)
    return Config(
        matrix=Uniform(rows=40, cols=50),
        k=16,
        dtype="float16",
        device="cpu",
        family="tiny",
        timing=Timing(max_samples=3, seconds=0.001, calls=1),
        records=str(tmp_path / "records.jsonl"),
    )


def test_every_kernel_of_the_registry_is_a_method(config: Config) -> None:
    assert list(forced_kernels()) == list(KERNELS)
    config.kernels = True
    config.methods = ["ours"]
    assert list(SDDMM.methods(config)) == ["ours", *KERNELS]
    identities = [SDDMM.method_identity(m)["kernel"] for m in forced_kernels().values()]
    assert identities == list(KERNELS)


def test_a_kernel_by_its_name_computes_or_refuses_in_its_own_words(config: Config) -> None:
    objective = only(
        ours=METHODS.select(["ours"])["ours"],
        row_gather=ForcedKernel("row_gather"),
        tile_mma_tf32_64x64x32=ForcedKernel("tile_mma_tf32_64x64x32"),
    )
    with emulated_gpu() as launches:
        ours, gather, refused = run(objective, "40x50", config)
    assert "row_gather" in launches
    assert (gather.status, gather.kernel, gather.is_forced) == ("ok", "row_gather", True)
    assert (gather.checked, gather.wrong) == (100, 0)
    assert gather.first_call_ms == []  # nobody calls it once
    assert len(gather.samples_ms) >= 3
    assert (refused.status, refused.samples_ms) == ("skipped", [])
    assert refused.reason == "kernel 'tile_mma_tf32_64x64x32' computes float32, not float16"
    assert ours.kernel in KERNELS
    assert not ours.is_forced
    assert ours.predicted_us[ours.kernel] > 0
    assert ours.first_call_ms


def test_an_explanation_names_the_choice_and_the_predictions() -> None:
    text = "  kernel   fast: 1.5 us predicted\n    not    slow_2: 1.2e+03 us predicted\n"
    assert chosen_kernel(text) == "fast"
    assert predictions(text) == {"fast": 1.5, "slow_2": 1200.0}
    assert chosen_kernel("  backend  cpu: 3 GFLOP") == ""


@pytest.mark.parametrize("name", ["ours", "torch_csr", "torch_dense"])
def test_methods_compute_several_heads(name: str, config: Config) -> None:
    config.heads, config.dtype = 3, "float32"
    case = make_case("heads", config)
    assert (case.heads, case.k, len(case.one_head())) == (3, 16, 3)
    method = METHODS.select([name])[name]
    assert method.refuses(case) is None
    for values in (method.prepare(case)(), SDDMM.first_call(method, case)()):
        verdict = Reference(case).check(values)
        assert (verdict.checked, verdict.wrong) == (300, 0)
    assert Reference(case).check(values[0]).wrong == 300


@pytest.mark.parametrize("name", ["gather_einsum", "isratnisa", "scipy_rows"])
def test_methods_of_one_head_refuse_several(name: str, config: Config) -> None:
    config.heads, config.dtype = 3, "float32"
    assert (
        METHODS.select([name])[name].refuses(make_case("heads", config)) == "it computes one head"
    )


def test_a_sample_of_several_heads_is_verified(config: Config) -> None:
    config.heads = 3
    case: Case = make_case("heads", config)
    values = METHODS.select(["ours"])["ours"].prepare(case)()
    verdict = Reference(case, full_work=16 * 3 * 10).check(values)
    assert (verdict.checked, verdict.wrong) == (30, 0)


def test_a_study_goes_on_after_a_problem_that_fails(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    config.methods = ["ours"]
    huge = Config(matrix=Uniform(rows=10**7, cols=10**7), device="cpu", warm=False)
    with pytest.raises(Exception, match=r"^huge: matrix huge .* needs \d+ bytes"):
        run_all(SDDMM, [("huge", huge), ("small", config)])
    assert "| small  | 100 |" in capsys.readouterr().out


def test_warming_runs_a_method_and_its_public_call_on_what_it_serves() -> None:
    ran: list[str] = []

    def run_of(part: str, case: str) -> Callable[[], None]:
        return lambda: ran.append(f"{part} {case}")

    method: Any = SimpleNamespace(
        refuses=lambda case: "it is odd" if case == "odd" else None,
        prepare=lambda case: run_of("prepared", case),
        public_call=lambda case: run_of("public", case),
    )
    configs: Any = ["one", "odd", "broken", "two"]

    def make_case(label: str, config: Any) -> Any:
        if config == "broken":
            raise ValueError("no such file")
        return config

    run_on_each(method, make_case, configs)
    assert ran == ["prepared one", "public one", "prepared two", "public two"]


@pytest.mark.parametrize("objective", [SDDMM, SPMM, TRAINING, ATTENTION], ids=lambda o: o.name)
def test_caches_are_filled_ahead_of_several_cases_unless_warm_is_off(
    objective: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[tuple[Any, int]] = []
    monkeypatch.setattr(
        ahead, "fill_caches", lambda own, configs: filled.append((own, len(configs)))
    )
    one, off = (Config(matrix=Uniform(rows=4, cols=5), warm=warm) for warm in (True, False))
    for configs in ([one], [off, off], [one, one]):
        objective.warm_caches(configs)
    assert filled == [(objective, 2)]
    assert (objective.ours, [one, one]) in ahead.tasks(objective, [one, one])
    pickle.loads(pickle.dumps(objective)).draw_case("", one)  # as the processes get it


def test_a_method_is_compiled_once_for_each_dtype_or_each_case_where_that_takes_long() -> None:
    small, large = (Uniform(rows=10**5, cols=10**5, nnz=nnz) for nnz in (9, 13_000_000))
    configs = [
        Config(matrix=matrix, dtype=dtype, objective="attention", methods=["ours", "flex", "sdpa"])
        for matrix, dtype in ((small, "float32"), (small, "float16"), (large, "float16"))
    ]
    compiled = ahead.tasks(ATTENTION, configs)
    apart = [("flex", [config]) for config in configs]
    assert compiled == [*apart, ("ours", configs[:1]), ("ours", configs[1:2])]
    every = {name for name, _ in ahead.tasks(ATTENTION, [replace(configs[0], kernels=True)])}
    assert every == {"ours", "flex", *ATTENTION_KERNELS}
    assert ("ours", configs[1:]) in ahead.tasks(SDDMM, configs)
