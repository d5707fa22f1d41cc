"""A study lists its problems in a few lines; the study of regret covers every class of patterns."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments.bench.errors import ExperimentError
from experiments.bench.sources import Causal
from experiments.sddmm.config import Config
from experiments.sddmm.problems import problems_of
from tests.conftest import ROOT

ENTRY = {"family": "causal", "source": "causal", "rows": 9, "cols": 8}
CLASSES = {
    "uniform", "rmat", "power law", "kNN", "bands", "stencils", "window", "causal", "packed",
    "blocks", "bipartite", "long row", "long column", "tall", "wide", "hypersparse", "tiny",
    "hybrid",
}  # fmt: skip


def study(**options: Any) -> list[tuple[str, Config]]:
    problems = OmegaConf.load(ROOT / "conf/study/regret.yaml")["problems"]
    return problems_of(Config(problems=OmegaConf.to_container(problems), **options))


def test_the_study_of_regret_covers_classes_densities_sizes_dtypes_and_heads() -> None:
    configs = [config for _, config in study()]
    assert len(configs) >= 80
    assert {config.family for config in configs} == CLASSES
    assert {config.dtype for config in configs} == {"float16", "bfloat16", "float32"}
    assert {config.heads for config in configs} == {1, 4, 8}
    assert (min(c.k for c in configs), max(c.k for c in configs)) == (16, 1024)
    sizes = [c.matrix.size() for c in configs if c.family == "uniform"]
    densities = [nnz / (rows * cols) for rows, cols, nnz in sizes]
    assert min(densities) == pytest.approx(1e-4)
    assert 0.58 < max(densities) < 0.61
    blocks = {c.matrix.block for c in configs if c.family == "blocks"}
    assert blocks == {16, 32, 64, 128}


def test_the_study_of_first_calls_has_patterns_of_few_and_of_many_nonzeros() -> None:
    problems = OmegaConf.load(ROOT / "conf/study/first_call.yaml")["problems"]
    configs = [c for _, c in problems_of(Config(problems=OmegaConf.to_container(problems)))]
    assert {config.family for config in configs} < CLASSES
    sizes = [config.matrix.size().nnz for config in configs]
    assert min(sizes) < 10_000 < 30_000_000 < max(sizes)


def test_no_problem_of_the_study_stands_twice() -> None:
    keys = [(repr(c.matrix), c.k, c.dtype, c.heads) for _, c in study()]
    assert len(keys) == len(set(keys))


def test_a_problem_is_a_matrix_with_k_dtype_and_heads() -> None:
    entry = {**ENTRY, "at": ["64 float16", "128 bfloat16 8 heads"]}
    (first_name, first), (_, second) = problems_of(Config(problems={"small": entry}, seed=5))
    assert first_name == "small"
    assert first.matrix == Causal(rows=9, cols=8)
    assert (first.k, first.dtype, first.heads, first.family) == (64, "float16", 1, "causal")
    assert (second.k, second.dtype, second.heads, second.seed) == (128, "bfloat16", 8, 5)


def test_an_entry_may_name_its_methods_and_how_ranks_divide_it() -> None:
    entry = {**ENTRY, "at": ["64 float16"], "divisions": ["rows", "ring 2 replicas"]}
    found = [c for _, c in problems_of(Config(problems={"p": {**entry, "methods": ["spmm"]}}))]
    assert [(c.way, c.replicas, c.methods) for c in found] == [
        ("rows", 1, ["spmm"]), ("ring", 2, ["spmm"]),
    ]  # fmt: skip
    plain = problems_of(Config(problems={"p": {**ENTRY, "at": ["64 float16"]}}, way="rows"))[0][1]
    assert (plain.way, plain.replicas, plain.methods) == ("rows", 1, [])


def test_a_class_a_matrix_or_a_part_of_a_study_can_be_chosen() -> None:
    whole = [(name, config.k, config.dtype, config.heads) for name, config in study()]
    parts = [study(part=f"{i}/3") for i in range(3)]
    chosen = [(n, c.k, c.dtype, c.heads) for part in parts for n, c in part]
    assert sorted(chosen) == sorted(whole)
    assert {config.family for _, config in study(only=["causal"])} == {"causal"}
    assert {name for name, _ in study(only=["tiny_64", "blocks16"])} == {"tiny_64", "blocks16"}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({**ENTRY}, "problem p: no 'at'"),
        ({**ENTRY, "source": "magic", "at": []}, "problem p: no 'magic'"),
        ({**ENTRY, "at": ["64 float8"]}, r"problem p: at must be like '64 float16' .* '64 float8'"),
        ({**ENTRY, "nnz": 3, "at": ["64 float16"]}, "problem p: .* 'nnz'"),
        ({**ENTRY, "at": [], "divisions": ["star"]}, "problem p: divisions must be .* 'star'"),
        ({**ENTRY, "rows": 0, "at": ["64 float16"]}, "problem p: matrix size must be >= 1x1"),
    ],
)
def test_a_wrong_entry_is_refused_by_its_name(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        problems_of(Config(problems={"p": entry}))


def test_a_choice_that_is_empty_is_refused() -> None:
    with pytest.raises(ExperimentError, match="no problem is named nothing"):
        study(only=["nothing"])
    with pytest.raises(ValueError, match="part must be I/N with I < N, got 4/4"):
        study(part="4/4")
