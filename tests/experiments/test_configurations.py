"""Every configuration composes: matrices, studies, and file names as they are."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments import cli
from experiments.bench import arguments, sources
from tests.conftest import DATA

MATRICES = sorted(path.stem for path in (arguments.CONF / "matrix").glob("*.yaml"))
STUDIES = sorted(path.stem for path in (arguments.CONF / "study").glob("*.yaml"))

NAMES = [
    *("a=b", "a$b", "a${k}", "\\${k}", "${a", "a{b", "a(b)", "a,b", "Matrix-\u00e4\u4e2d", "it's"),
    *('a"b', "a b", "a|b", "[a]", "a:b", "~a", "#a", "a%b", "\\'"),
]


@pytest.fixture(scope="module")
def composed():
    cli.register()
    with initialize_config_dir(str(arguments.CONF), version_base="1.3"):
        yield lambda *overrides: compose("config", arguments.prepare(overrides))


@pytest.mark.parametrize("name", MATRICES)
def test_every_matrix_yaml_composes_to_a_source(composed, name: str) -> None:
    config = composed(f"+matrix={name}")
    assert isinstance(cli.typed(config).matrix, tuple(sources.SOURCES.values()))


def axes(study: str) -> dict[str, list[str]]:
    loaded = OmegaConf.load(arguments.CONF / "study" / f"{study}.yaml")
    params = OmegaConf.select(loaded, "hydra.sweeper.params", default={})
    return {key: str(value).split(",") for key, value in params.items()}


@pytest.mark.parametrize("study", STUDIES)
def test_every_value_of_every_study_composes(composed, study: str) -> None:
    values = axes(study)
    for index in range(max(map(len, values.values()), default=1)):
        point = [f"{key}={own[index % len(own)]}" for key, own in values.items()]
        cli.typed(composed(f"+study={study}", *point))


@pytest.mark.parametrize("size", [5000, 10000, 50000])
def test_a_published_study_covers_the_published_table(size: int) -> None:
    """All measured matrices, sparsities and Ks of that size, and no value that is not there."""
    with open(DATA / "sddmm_log_rtx4090.csv", newline="") as file:
        rows = [
            (round(1 - float(r["sparsity_percent"]) / 100, 6), int(r["K"]))
            for r in csv.DictReader(file)
            if r["M"] == r["N"] == str(size)
        ]
    study = axes(f"published_{size}")
    assert study["matrix"] == [f"{size}x{size}"]
    densities = {round(1 - float(s), 6) for s in study["sparsity"]}
    inner = {int(k) for k in study["k"]}
    assert densities == {density for density, _ in rows}
    assert inner == {k for _, k in rows}


@pytest.mark.parametrize("name", NAMES)
def test_file_names_are_taken_as_they_are(composed, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.mtx"
    path.write_text("%%MatrixMarket matrix coordinate pattern general\n4 4 1\n2 1\n")
    config = cli.typed(composed(f"+matrix={path}", f"records={path}"))
    assert (config.matrix.path, config.records) == (str(path), str(path))
    given = arguments.prepare([f"records=[{path},other.jsonl]"], lists=("records",))
    assert cli.typed(compose("report", given)).records == [str(path), "other.jsonl"]
