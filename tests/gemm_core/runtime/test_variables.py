"""Environment variables stand in one table; a wrong name or value is one line of error."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gemm_core
from datasets import cache as datasets_cache
from experiments import pages
from gemm_core.runtime import compile as compiling
from gemm_core.runtime.variables import FOREIGN, VARIABLES, in_force, mistakes, refuse_mistakes
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SDDMM_KERNEL_CAHCE", "", "SDDMM_KERNEL_CAHCE is unknown; did you mean SDDMM_KERNEL_CAC"),
        ("SDDMM_X", "1", "SDDMM_X is unknown; known are SDDMM_KERNEL_CACHE, SDDMM_CHECK_INDICES"),
        ("SDDMM_CHECK_INDICES", "yes", "SDDMM_CHECK_INDICES must be 0 or 1, got 'yes'"),
        ("SDDMM_COMMIT", "main", "SDDMM_COMMIT must be 7 to 40 hexadecimal digits, got 'main'"),
        ("SDDMM_KERNEL_CACHE", __file__, "SDDMM_KERNEL_CACHE must be a folder, or the name of"),
        ("SDDMM_DATASETS_CACHE", "~/x", r"SDDMM_DATASETS_CACHE must be a folder, .* got '~/x'"),
    ],
)
def test_a_wrong_name_or_value_is_refused_in_one_line_when_a_package_is_imported(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^environment variable {message}") as error:
        importlib.reload(gemm_core)
    assert str(error.value).isprintable()


def test_valid_and_empty_values_and_names_of_others_are_no_mistakes(tmp_path: Path) -> None:
    folders = {"SDDMM_KERNEL_CACHE": str(tmp_path), "SDDMM_DATASETS_CACHE": str(tmp_path / "new")}
    valid = {**folders, "SDDMM_CHECK_INDICES": "1", "SDDMM_COMMIT": "71a6fdf", "PATH": "~"}
    assert mistakes(valid) == []
    assert mistakes(dict.fromkeys(VARIABLES, "")) == []
    assert in_force({**valid, "OMP_NUM_THREADS": "2"}).keys() == {*VARIABLES, "OMP_NUM_THREADS"}


def test_mistakes_do_not_keep_the_report_of_the_environment_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SDDMM_X", "1")
    monkeypatch.setattr(sys, "argv", ["-m"])  # as while Python looks for sddmm.__main__
    refuse_mistakes()


def read_names() -> Iterator[tuple[str, str]]:
    """(file, name) of every environment variable that a module reads."""
    for package in ("gemm_core", "sddmm", "datasets", "experiments"):
        for path in (ROOT / package).rglob("*.py"):
            file = path.relative_to(ROOT)
            if "environ" not in path.read_text() or file.name == "variables.py":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                key: ast.expr | None = None
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.environ.get":
                    key = node.args[0]
                if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
                    key = node.slice
                if key is not None:
                    module = importlib.import_module(".".join(file.with_suffix("").parts))
                    yield str(file), eval(ast.unparse(key), vars(module))


def test_every_variable_that_is_read_is_in_the_table_and_the_other_way_round() -> None:
    names = {name: file for file, name in read_names()}
    assert set(VARIABLES) <= set(names)
    assert set(names) <= {*VARIABLES, *FOREIGN}, names


def test_both_caches_are_in_one_folder_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (compiling.CACHE_VARIABLE, datasets_cache.FOLDER_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiling.cache_folder() == tmp_path / "sddmm" / "kernels"
    assert datasets_cache.folder() == tmp_path / "sddmm" / "datasets"


def test_the_page_shows_every_variable() -> None:
    page = (ROOT / "docs" / "environment.md").read_text()
    assert pages.with_tables(page) == page
    for name in (*VARIABLES, *FOREIGN):
        assert f"`{name}`" in page, name
