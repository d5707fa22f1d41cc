"""The README says what is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


def test_the_first_example_runs() -> None:
    (example, *_) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    small = example.replace("10_000", "100")
    check = (
        "\nfull = mask.to_dense() * (a @ bt.mT)"
        "\ntorch.testing.assert_close(P.to_dense(), full, rtol=1e-4, atol=1e-4)"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", small + check], cwd=ROOT, check=True)


@pytest.mark.parametrize("folder", re.findall(r"<!-- results: (\S+) -->", README))
def test_tables_are_those_of_the_recorded_results(folder: str) -> None:
    shown = README.partition(f"<!-- results: {folder} -->\n")[2].partition("\n<!-- end -->")[0]
    reported = (ROOT / folder / "report.md").read_text()
    assert shown.strip()
    assert shown.strip() in reported


def test_every_file_it_links_to_exists() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), target


def test_every_method_is_described() -> None:
    for path in Path(ROOT, "experiments", "methods").glob("[!_]*.py"):
        assert f"| `{path.stem}` |" in README
