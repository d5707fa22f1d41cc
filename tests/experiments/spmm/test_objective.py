"""SpMM is measured like SDDMM: records, kernels by their name, and the studies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments.bench import timing
from experiments.bench.config import Timing
from experiments.bench.run import run
from experiments.bench.sources import Uniform
from experiments.sddmm.config import Config
from experiments.sddmm.problems import problems_of
from experiments.spmm.case import make_case
from experiments.spmm.forced import ForcedKernel, forced_kernels
from experiments.spmm.objective import SPMM
from sddmm.backends.cuda.kernels.registry import SPMM_KERNELS
from sddmm.testing import emulated_gpu
from tests.conftest import ROOT


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(timing, "WARM_UP_MS", 0.0)
    return Config(
        objective="spmm",
        matrix=Uniform(rows=40, cols=50),
        k=16,
        device="cpu",
        transpose=True,
        methods=["ours", "torch_csr", "cusparse_alg2"],
        timing=Timing(max_samples=3, seconds=0.001, calls=1),
        records=str(tmp_path / "records.jsonl"),
    )


def test_methods_are_verified_timed_and_recorded(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, cusparse, torch_csr = run(SPMM, "40x50", config)
    assert (ours.status, cusparse.status, torch_csr.status) == ("ok", "skipped", "ok")
    assert (ours.checked, ours.wrong, ours.transpose) == (50 * 16, 0, True)
    assert (ours.m, ours.n, ours.nnz) == (40, 50, 100)
    assert ours.column_view_ms is not None
    assert ours.first_call_ms
    assert "| 40x50  | 100 |" in capsys.readouterr().out
    again = run(SPMM, "40x50", config)
    assert [record.session for record in again[::2]] == [ours.session] * 2  # from the store
    config.transpose = False
    straight, _, _ = run(SPMM, "40x50", config)
    assert straight.session != ours.session
    assert (straight.column_view_ms, straight.case == ours.case) == (None, False)


def test_every_kernel_of_the_registry_is_a_method(config: Config) -> None:
    config.kernels = True
    assert list(SPMM.methods(config)) == ["ours", "cusparse_alg2", "torch_csr", *SPMM_KERNELS]
    identities = [SPMM.method_identity(m)["kernel"] for m in forced_kernels().values()]
    assert identities == list(SPMM_KERNELS)


@pytest.mark.parametrize("kernel", list(SPMM_KERNELS)[:1])
def test_a_kernel_by_its_name_computes(kernel: str, config: Config) -> None:
    method = ForcedKernel(kernel)
    case = make_case("small", config)
    with emulated_gpu():
        assert method.refuses(case) is None
        (trial,) = SPMM.trials(method, case, method.prepare(case), SPMM.reference(case))
        assert trial.check(trial.call()).wrong == 0
    assert not SPMM.times_first_call(method)


@pytest.mark.parametrize("rounds", [False, True])
def test_only_a_peer_that_rounds_partial_sums_has_the_wider_bound(
    rounds: bool, config: Config
) -> None:
    method: Any = SimpleNamespace(PARTIAL_SUMS_ROUND=rounds)
    reference = SimpleNamespace(check=lambda result, may_round: may_round)
    first, prepared = SPMM.trials(method, make_case("small", config), lambda: None, reference)
    assert (first.check(None), prepared.check(None)) == (rounds, rounds)


@pytest.mark.parametrize("kernel", list(SPMM_KERNELS))
def test_tile_kernels_are_not_measured_where_no_tile_is_dense(kernel: str, config: Config) -> None:
    config.matrix = Uniform(rows=1000, cols=1000, nnz=1000)
    case = make_case("sparse", config)
    with emulated_gpu():
        reason = ForcedKernel(kernel).refuses(case)
    sparse = "not measured: few tiles are dense where 1 in 500 positions is stored"
    assert reason == (sparse if SPMM_KERNELS[kernel].tile_sizes else None)


def study(name: str) -> tuple[dict[str, Any], list[Config]]:
    loaded: Any = OmegaConf.to_container(OmegaConf.load(ROOT / f"conf/study/{name}.yaml"))
    options = {key: loaded.get(key, False) for key in ("transpose", "kernels")}
    config = Config(objective=loaded["objective"], problems=loaded["problems"], **options)
    return loaded, [problem for _, problem in problems_of(config)]


CLASSES = {
    "uniform", "power law", "rmat", "hypersparse", "large graph", "molecules", "window", "causal",
}  # fmt: skip
OTHER_CLASSES = {"bands", "bipartite", "blocks", "packed", "stencils", "tall", "wide"}


@pytest.mark.parametrize("name", ["spmm", "spmm_transposed"])
def test_the_studies_cover_patterns_sizes_heads_and_dtypes(name: str) -> None:
    loaded, configs = study(name)
    assert (loaded["objective"], configs[0].transpose) == ("spmm", name == "spmm_transposed")
    assert 70 <= len(configs) <= 80
    assert len({(repr(c.matrix), c.k, c.dtype, c.heads) for c in configs}) == len(configs)
    assert {c.family for c in configs} == CLASSES | OTHER_CLASSES
    # Those of the published cases, and others: of unaligned rows, and of rows cut unevenly.
    assert {c.k for c in configs} > {32, 64, 128, 256, 41, 48, 100, 172, 300}
    assert {c.heads for c in configs} == {1, 2, 4, 8}
    assert {c.dtype for c in configs} == {"float16", "bfloat16", "float32"}
    assert max(c.matrix.size().nnz for c in configs) == 57_000_000


def test_both_studies_measure_the_same_problems() -> None:
    assert study("spmm")[0]["problems"] == study("spmm_transposed")[0]["problems"]


def test_the_transpose_is_of_spmm_alone() -> None:
    with pytest.raises(ValueError, match="transpose must be false but in spmm"):
        Config(matrix=Uniform(rows=4, cols=5), transpose=True)
    with pytest.raises(ValueError, match="objective must be one of sddmm, spmm, training"):
        Config(objective="gemm")


def test_records_of_each_objective_have_their_own_file() -> None:
    assert Config(objective="spmm").records == "results/spmm.jsonl"
    assert Config().records == "results/records.jsonl"
