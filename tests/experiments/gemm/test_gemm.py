"""The ladder: what is right, what is compared with what, and how it is shown."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments import cli
from experiments.bench import arguments, timing
from experiments.bench.arguments import CONF
from experiments.bench.config import Timing
from experiments.bench.errors import ExperimentError, RowsFailed
from experiments.bench.report import merge
from experiments.bench.report import report as write_report
from experiments.bench.run import run
from experiments.bench.store import Store
from experiments.gemm import methods, objective, published, report
from experiments.gemm.case import Case, make_case
from experiments.gemm.config import GemmConfig, LadderConfig
from experiments.gemm.methods import ALL, Cublas
from experiments.gemm.objective import GEMM, Gemm, variants
from experiments.gemm.record import GemmRecord
from experiments.gemm.verify import Reference
from gemm_core.ladder.registry import KERNELS
from sddmm.testing import H200


def reference(k: int = 64, dtype: torch.dtype = torch.float16) -> Reference:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, generator=generator).to(dtype) for size in ((40, k), (k, 30)))
    return Reference.of(a, b)


def gemm_record(variant: str, ms: float | None, session: str = "one", **more: object) -> GemmRecord:
    values: dict[str, object] = {
        "key": f"{variant}{session}", "session": session, "m": 1000, "n": 1000, "k": 500,
        "dtype": "float16", "accumulate": "fp32", "b_rows": "k", "variant": variant,
        "baseline": "cublas", "status": "ok", "samples_ms": [] if ms is None else [ms] * 3,
        "environment": {"device": "a GPU"}, **more,
    }  # fmt: skip
    return GemmRecord(**values)  # type: ignore[arg-type]


def test_a_right_product_is_within_its_bound_and_a_wrong_element_is_not() -> None:
    expected = reference()
    c = expected.product.half()
    assert expected.within_bound(c, "fp32", "ieee").all()
    c[3, 4] += 0.25
    assert (~expected.within_bound(c, "fp32", "ieee")).nonzero().tolist() == [[3, 4]]
    c[0, 0] = torch.nan
    assert not expected.within_bound(c, "fp32", "ieee")[0, 0]


def test_less_exact_operands_are_allowed_their_rounding_and_no_more() -> None:
    expected = reference(dtype=torch.float32)
    off = (expected.product + 2.0**-12 * expected.magnitude).float()
    assert expected.within_bound(off, "fp32", "tf32").all()
    assert not expected.within_bound(off, "fp32", "tf32x3").any()
    assert not expected.within_bound(off, "fp32", "ieee").any()


def test_integers_must_be_exact_to_the_last_bit() -> None:
    a, b = torch.ones(3, 5).half(), torch.ones(5, 4).half()
    expected = Reference.of(a, b)
    c = torch.full((3, 4), 5.0).half()
    assert expected.check_exact(c).wrong == 0
    c[2, 3] = 5.004
    assert expected.check_exact(c).wrong == 1
    c[0, 0] = torch.nan
    assert expected.check_exact(c).reason == "small integers are not exact"


def test_the_error_of_a_product_is_that_of_its_frobenius_norm() -> None:
    expected = reference(dtype=torch.float32)
    verdict = expected.check((expected.product * 2).float(), "fp32", "ieee")
    assert verdict.error == pytest.approx(1, rel=1e-6)
    assert verdict.reason == f"{verdict.wrong} values beyond the bound"


def test_shares_are_of_the_baseline_of_the_same_session() -> None:
    rows = [
        gemm_record("cublas", 2.0),
        gemm_record("cublas_tf32", 1.0, baseline="cublas_tf32"),
        gemm_record("mma_tf32", 2.0, baseline="cublas_tf32"),
        gemm_record("sgemm", 4.0),
        gemm_record("sgemm", 1.0, session="other"),
    ]
    share = report.of_cublas(rows)
    assert share["mma_tf32one"] == share["sgemmone"] == pytest.approx(0.5)
    assert "sgemmother" not in share


def test_a_row_shows_its_speed_and_its_gain_over_the_rung_before() -> None:
    rows = report.rows(
        [
            gemm_record("cublas", 1.0),
            gemm_record("first", 5.0, registers=96, shared_bytes=49152, spill_bytes=0),
            gemm_record("refused", None, status="skipped", reason="needs more"),
            gemm_record("second", 2.0, error=2.5e-4),
        ]
    )
    assert [row["TFLOP/s"] for row in rows] == ["1.0", "0.2", "", "0.5"]
    assert [row["of cuBLAS"] for row in rows] == ["100.0%", "20.0%", "", "50.0%"]
    assert [row["of previous"] for row in rows] == ["", "", "", "250%"]
    assert rows[1]["registers"] == "96"
    assert rows[1]["shared KiB"] == "48.0"
    assert rows[3]["error"] == "2.5e-04"


def test_a_summary_climbs_the_ladder_whatever_the_order_of_the_records() -> None:
    """A rung that only a later shape has stands among the others; one of the past stands last."""
    past, second, first = "wgmma_of_the_past", "mma_64x64x32_stage3", "hgemm_naive"
    records = [gemm_record(name, 1.0) for name in ("cublas", past, second)]
    records += [gemm_record(name, 1.0, "later", m=64) for name in ("cublas", first, second)]
    lines = report.as_summary(records).splitlines()
    rows = [line.split()[1] for line in lines if line.startswith("| ")]
    assert rows == ["variant", "cublas", first, second, past]


def test_reports_hold_the_newest_record_of_every_variant_and_its_baseline(tmp_path: Path) -> None:
    store = Store(tmp_path / "gemm.jsonl", GemmRecord)
    for session, ms in (("old", 8.0), ("new", 4.0)):
        for variant, factor in (("cublas", 1), ("mma", 2)):
            store.append(gemm_record(variant, ms * factor, session))
    store.append(gemm_record("wmma", 16.0, "old"))
    store.append(gemm_record("cublas", 1.0, "else", k=100))
    store.append(gemm_record("mma", 1.0, "else", k=100))
    config = LadderConfig(records=[str(store.path)], output=str(tmp_path / "out"), plots=False)
    write_report(GEMM, config)
    merged = merge(GEMM, config.records)
    assert [(r.variant, r.session) for r in merged if r.k == 500] == [
        ("cublas", "old"),
        ("mma", "new"),
        ("cublas", "new"),
        ("wmma", "old"),
    ]
    assert [f"{part:.0%}" for part in report.of_cublas(merged).values()] == [
        "100%", "50%", "100%", "50%", "100%", "100%",
    ]  # fmt: skip
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert "1000x1000x500" in summary
    assert "1000x1000x100" in summary
    assert "0.1 (50%)" in summary
    text = (tmp_path / "out" / "report.md").read_text()
    assert "Published hgemm figures (GPU: NVIDIA L20)" in text
    assert len((tmp_path / "out" / "report.csv").read_text().splitlines()) == 1 + 6


def test_published_figures_are_the_best_of_their_repetitions() -> None:
    shape = "16384x8192x8192"
    best = published.best("hgemm", [shape], "NVIDIA L20")
    assert best["f16(cublas)"][shape] == pytest.approx(113.866)
    assert best["f16(naive)"][shape] == pytest.approx(2.477)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": "12x3"}, "shape must be three sizes MxNxK, got 12x3"),
        ({"shape": "0x3x4"}, "shape must be three sizes"),
        ({"dtype": "float64"}, "dtype must be one of float16, bfloat16, float32"),
        ({"accumulate": "fp64"}, "accumulate must be one of fp32, fp16, got fp64"),
        ({"b_rows": "m"}, "b_rows must be one of k, n, got m"),
    ],
)
def test_what_no_gemm_can_be_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GemmConfig(**change)


def test_variants_are_those_that_compute_what_is_asked_for() -> None:
    half = variants(GemmConfig())
    assert next(iter(half)) == "cublas"
    assert "mma_128x256x64_stage3" in half
    assert "hgemm_sliced_k" not in half
    assert "hgemm_sliced_k" in variants(GemmConfig(accumulate="fp16"))
    floats = variants(GemmConfig(dtype="float32", b_rows="n"))
    assert list(floats)[:2] == ["cublas", "cublas_tf32"]
    with pytest.raises(ExperimentError, match=r"unknown variant of float16 .* 'sgemm_naive'"):
        variants(GemmConfig(variants=["sgemm_naive"]))


def test_what_gemm_chooses_is_a_method_of_its_own() -> None:
    half = list(variants(GemmConfig()))
    assert half[:2] == ["cublas", "gemm"]
    assert "gemm_tf32" not in half
    floats = variants(GemmConfig(dtype="float32", variants=["gemm*"]))
    assert list(floats) == ["cublas", "cublas_tf32", "gemm", "gemm_tf32"]
    baselines = {name: GEMM.method_fields(name, m)["baseline"] for name, m in floats.items()}
    assert baselines["gemm"] == "cublas"
    assert baselines["gemm_tf32"] == "cublas_tf32"


def test_a_star_names_many_variants() -> None:
    chosen = list(variants(GemmConfig(variants=["mma_128x256*", "wgmma_split?_*"])))
    assert chosen[0] == "cublas"
    assert set(chosen[1:]) == {
        name
        for name in ALL
        if name.startswith(("mma_128x256", "wgmma_split")) and "tf32" not in name
    }
    with pytest.raises(ExperimentError, match=r"unknown variant of float16 .* 'wgmma_tf32_\*'"):
        variants(GemmConfig(variants=["gemm", "wgmma_tf32_*"]))


def test_the_choice_is_measured_again_when_a_rung_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, rung = ALL["gemm"], ALL["mma_64x64x32_stage3"]
    before = [GEMM.method_identity(method) for method in (chosen, rung)]
    other = {name: replace(spec, h200_tflops=1.0) for name, spec in KERNELS.items()}
    monkeypatch.setattr(objective, "KERNELS", other)
    after = [GEMM.method_identity(method) for method in (chosen, rung)]
    assert before[0] != after[0]
    assert before[1] == after[1]
    sources = {path.name for path in GEMM.sources(chosen)}
    assert {spec.source for spec in KERNELS.values()} <= sources


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "shapes").glob("*.yaml")))
def test_every_list_of_shapes_names_variants_that_serve_it(name: str) -> None:
    shapes = OmegaConf.load(CONF / "shapes" / f"{name}.yaml")
    own = {key: shapes[key] for key in ("variants",) if key in shapes}
    params = shapes.hydra.sweeper.params
    for values in itertools.product(*(str(each).split(",") for each in params.values())):
        config = GemmConfig(**own, **dict(zip(params, values, strict=True)))
        assert len(variants(config)) >= 3


def test_a_list_of_shapes_sets_variants_and_timing() -> None:
    cli.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = cli.typed(compose("gemm", arguments.prepare(["+shapes=hopper"])))
    assert config.variants[0] == "gemm"
    assert (config.timing.warm_up_ms, config.timing.samples_per_round) == (30, 1)


def test_without_a_gpu_gemm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ExperimentError, match="torch sees no CUDA device"):
        run(GEMM, "any", GemmConfig())


class OnCpu(Gemm):
    """GEMM by torch.mm on the CPU: cuBLAS's method, and others that differ in name only."""

    def __init__(self, *names: str) -> None:
        self._names = ("cublas", *names)

    def methods(self, config: GemmConfig) -> dict[str, Cublas]:
        return {name: Cublas() for name in self._names}

    def device(self, config: GemmConfig) -> str:
        return "cpu"

    def make_case(self, label: str, config: GemmConfig, identity: object) -> Case:
        return make_case(config, "cpu")


def test_a_variant_says_what_it_refuses_and_what_it_was_compiled_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(methods, "device", lambda index: H200)  # there is none to ask
    case = make_case(GemmConfig(shape="128x256x64"), "cpu")
    served = ALL["mma_128x256x64_stage3"]
    assert served.refuses(case) is None
    record = gemm_record("mma_128x256x64_stage3", None)
    GEMM.annotate(record, served, case)
    assert record.registers
    assert record.spill_bytes == 0
    assert record.shared_bytes == served.spec.shared_bytes
    choice = gemm_record("gemm", 2.0)
    GEMM.annotate(choice, ALL["gemm"], case)
    assert ALL["gemm"].refuses(case) is None
    assert choice.kernel in KERNELS
    assert choice.shared_bytes == KERNELS[choice.kernel].shared_bytes
    rung = gemm_record("mma", 4.0, kernel="mma")
    rows = report.rows([gemm_record("cublas", 1.0), choice, rung])
    assert [row["variant"] for row in rows] == ["cublas", f"gemm: {choice.kernel}", "mma"]
    assert [row["of previous"] for row in rows] == ["", "", ""], "gemm is no rung"
    monkeypatch.setattr(methods, "device", lambda index: replace(H200, capability=(8, 0)))
    nothing = replace(case, config=GemmConfig(dtype="bfloat16", accumulate="fp16"))
    assert "no kernel serves this problem" in str(
        ALL["gemm"].refuses(replace(nothing, a=case.a.bfloat16(), b=case.b.bfloat16()))
    )
    wgmma = next(method for name, method in ALL.items() if name.startswith("wgmma"))
    assert "capability" in str(wgmma.refuses(case))
    assert GEMM.method_fields("x", ALL["cublas_tf32"])["baseline"] == "cublas"
    GEMM.compile({"mma": served, "wgmma": wgmma, "cublas": ALL["cublas"]}, case)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GemmConfig:
    monkeypatch.setattr(timing, "WARM_UP_MS", 0.0)
    quick = Timing(max_samples=3, seconds=0)
    records = str(tmp_path / "gemm.jsonl")
    return GemmConfig(shape="20x30x16", dtype="float32", timing=quick, records=records)


def test_cublas_is_measured_again_beside_each_new_variant(
    small: GemmConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(OnCpu("a"), "20x30x16", small)
    assert [(r.name, r.status) for r in first] == [("cublas", "ok"), ("a", "ok")]
    assert all(r.error is not None and r.error < 1e-6 and r.checked == 600 for r in first)
    assert "20x30x16 float32, sums in fp32, b in rows of k" in capsys.readouterr().out
    both = run(OnCpu("a", "b"), "20x30x16", small)
    assert sorted(r.name for r in both) == ["a", "b", "cublas", "cublas"]
    for session in {r.session for r in both}:
        assert next(r.name for r in both if r.session == session) == "cublas"
    again = run(OnCpu("a", "b"), "20x30x16", small)
    assert [r.key for r in again] == [r.key for r in both]
    assert len(Store(small.records, GemmRecord).records()) == 4


@pytest.mark.parametrize("integers_only", [False, True])
def test_a_product_that_is_wrong_has_its_reason_and_no_time(
    small: GemmConfig, monkeypatch: pytest.MonkeyPatch, integers_only: bool
) -> None:
    product = torch.mm

    def one_off(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        product(a, b, out=out)
        if not integers_only or set(a.unique().tolist()) <= {-1, 0, 1}:
            out[3, 4] += 1
        return out

    monkeypatch.setattr(torch, "mm", one_off)
    with pytest.raises(RowsFailed, match="2 of 2 rows are not right: cublas, a"):
        run(OnCpu("a"), "20x30x16", small)
    for record in Store(small.records, GemmRecord).records():
        assert (record.status, record.wrong, record.samples_ms) == ("wrong", 1, [])
        assert record.reason == "small integers are not exact"
        assert record.error is not None


@pytest.mark.gpu
class TestOnTheGpu:
    config = GemmConfig(shape="256x384x128", timing=Timing(max_samples=3, seconds=0))

    def test_every_variant_is_right_and_timed(self, tmp_path: Path) -> None:
        self.config.records = str(tmp_path / "gemm.jsonl")
        records = run(GEMM, "small", self.config)
        assert {r.status for r in records} == {"ok"}
        assert all(r.tflops and r.error is not None for r in records)
        assert all(r.registers for r in records if r.variant != "cublas")

    def test_a_variant_that_is_wrong_is_never_timed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def off_by_one_row(
            a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, **_: object
        ) -> None:
            torch.mm(a.roll(1, 0), b, out=out)

        monkeypatch.setattr(methods, "gemm", off_by_one_row)
        self.config.records = str(tmp_path / "gemm.jsonl")
        with pytest.raises(RowsFailed, match="mma_128x256x64_stage3"):
            run(GEMM, "small", self.config)
        records = Store(self.config.records, GemmRecord).load().values()
        assert {r.status for r in records if r.variant != "cublas"} == {"wrong"}
        assert not any(r.samples_ms for r in records if r.variant != "cublas")
