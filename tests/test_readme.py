"""The README says what is so."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

from experiments.pages import PAGES
from gemm_core.ladder.registry import KERNELS
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


def test_the_first_example_runs() -> None:
    (example, *_) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    small = example.replace("100_000, 3_000_000", "1_000, 3_000")
    assert small != example
    check = (
        "\nassert scores.shape == (edges,)"
        "\nexpected = (q[target].double() * k[source].double()).sum(1)"
        "\ntorch.testing.assert_close(scores.double(), expected, rtol=1e-4, atol=1e-4)"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", small + check], cwd=ROOT, check=True)


def test_every_gemm_kernel_belongs_to_a_section_of_the_ladder_and_has_records() -> None:
    ladder = (ROOT / "docs" / "ladder.md").read_text()
    families = [
        family for heading in re.findall(r"^## (.*)$", ladder, re.MULTILINE)
        for family in re.findall(r"`([^`]+)`", heading)
    ]  # fmt: skip
    measured = (ROOT / "docs" / "results" / "h200" / "gemm" / "summary.md").read_text()
    for name in KERNELS:
        assert any(fnmatch(name, family) for family in families), name
        assert f"| {name} " in measured, name


def test_every_file_it_links_to_exists() -> None:
    for page in (ROOT / name for name in PAGES):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), target


def test_every_method_is_described() -> None:
    for path in Path(ROOT, "experiments", "sddmm", "methods").glob("[!_]*.py"):
        assert f"| `{path.stem}` |" in README


def test_the_glossary_has_one_plain_sentence_for_each_word() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    table = contributing.partition("## Glossary")[2].partition("\n## ")[0]
    words = dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", table, re.MULTILINE))
    del words["word"]
    assert len(words) >= 20
    for word, sentence in words.items():
        assert sentence.endswith("."), word
        assert ". " not in sentence, word
        assert not sentence.startswith("Of "), word
