"""Every kernel's source says what it adds, what limits it, and what each of its macros is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sddmm.backends.cuda.spec import KERNEL_FOLDER

SOURCES = sorted(KERNEL_FOLDER.rglob("*.cu"))
pytestmark = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)


def config_of(source: Path) -> str:
    """The body of the struct that names the macros."""
    body = re.search(r"^struct Config \{\n(.*?)^\};", source.read_text(), re.DOTALL | re.MULTILINE)
    assert body is not None, f"{source} has no Config"
    return body[1]


def test_three_lines_open_it_and_end_with_what_limits_it(source: Path) -> None:
    lines = source.read_text().splitlines()
    assert all(line.startswith("// ") for line in lines[:3])
    assert lines[3].startswith("#include")
    assert "Limit: " in " ".join(line.removeprefix("// ") for line in lines[:3])


def test_macros_occur_in_its_config_only(source: Path) -> None:
    outside = source.read_text().replace(config_of(source), "")
    assert re.findall(r"\bSDDMM_\w+", outside) == []


def test_a_comment_says_what_each_macro_is(source: Path) -> None:
    for group in re.split(r"(?=^  //)", config_of(source), flags=re.MULTILINE):
        macros = re.findall(r"\bSDDMM_\w+", group)
        assert group.startswith("  //") or not macros
        assert len(macros) <= 3, f"one comment for {macros}"


def test_its_parameters_are_compared_with_the_hosts(source: Path) -> None:
    assert "\nGEMM_CORE_CHECK_STRUCT(Arguments)\n" in source.read_text()
