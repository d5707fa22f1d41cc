"""The README says what is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gemm_core.ladder.registry import KERNELS
from tests.conftest import ROOT

PAGES = ("README.md", "CONTRIBUTING.md", "docs/ladder.md", "docs/sddmm.md")
README = (ROOT / "README.md").read_text()


def test_the_first_example_runs() -> None:
    (example, *_) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    small = example.replace("10_000", "100")
    check = (
        "\nfull = mask.to_dense() * (a @ bt.mT)"
        "\ntorch.testing.assert_close(P.to_dense(), full, rtol=1e-4, atol=1e-4)"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", small + check], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("page", "source"),
    [
        (page, source)
        for page in PAGES
        for source in re.findall(r"<!-- results: (\S+) -->", (ROOT / page).read_text())
    ],
)
def test_tables_are_those_of_the_recorded_results(page: str, source: str) -> None:
    """source: a file, or a folder whose report.md holds the table."""
    text = (ROOT / page).read_text()
    shown = text.partition(f"<!-- results: {source} -->\n")[2].partition("<!-- end -->")[0]
    recorded = ROOT / source
    reported = (recorded / "report.md" if recorded.is_dir() else recorded).read_text()
    assert shown.strip()
    assert shown.strip() in reported


def test_every_family_of_kernels_is_told_of() -> None:
    ladder = (ROOT / "docs" / "ladder.md").read_text()
    for name in KERNELS:
        assert f"| {name} " in ladder, name


def test_every_file_it_links_to_exists() -> None:
    for page in (ROOT / name for name in PAGES):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), target


def test_every_method_is_described() -> None:
    for path in Path(ROOT, "experiments", "sddmm", "methods").glob("[!_]*.py"):
        assert f"| `{path.stem}` |" in README
