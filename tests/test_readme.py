"""The README says what is so."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from fnmatch import fnmatch
from pathlib import Path

from experiments.pages import PAGES
from gemm_core.ladder.registry import KERNELS
from sddmm.cache import MAX_BYTES
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


def run_python(program: str) -> None:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # torch's sparse CSR tensors are in beta
        exec(compile(program, "README.md", "exec"), {})


def test_the_first_example_runs() -> None:
    (example, *_) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    small = example.replace("100_000, 3_000_000", "1_000, 3_000")
    assert small != example
    check = (
        "\nassert scores.shape == (edges,)"
        "\nsource, target = edge_index"
        "\nexpected = (q[source].double() * k[target].double()).sum(1)"
        "\ntorch.testing.assert_close(scores.double(), expected, rtol=1e-4, atol=1e-4)"
    )
    run_python(small + check)


def test_the_examples_of_use_run() -> None:
    use = README.partition("## Use\n")[2].partition("\n## ")[0]
    examples = re.findall(r"```python\n(.*?)```", use, re.DOTALL)
    operands = """
import scipy.sparse
import torch
heads, m, n, d, device = 2, 30, 20, 64, "cpu"
mask = torch.rand(m, n) < 0.3
S = mask.float().to_sparse_csr()
crow_indices, col_indices = S.crow_indices(), S.col_indices()
bm, bn, block_crow, block_col = 15, 10, torch.tensor([0, 1, 3]), torch.tensor([1, 0, 1])
a, b = torch.randn(m, d), torch.randn(d, n)
q, k, v = (torch.randn(heads, rows, d) for rows in (m, n, n))
matrix, edge_index, num_nodes = scipy.sparse.random(m, n), torch.randint(m, (2, 50)), m
"""
    check = """
sampled = torch.zeros(m, n).masked_scatter_(mask, values)
torch.testing.assert_close(sampled, (a @ b) * mask, rtol=1e-4, atol=1e-4)
assert out.shape == (heads, m, d)
values = torch.randn(50)
"""
    assert len(examples) == 2
    run_python(operands + examples[0] + check + examples[1])


def test_the_cache_has_the_bound_that_the_limits_name() -> None:
    assert "bounded by bytes, 2 GiB by default" in " ".join(README.split())
    assert MAX_BYTES == 2 * 2**30


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


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_file_and_heading_it_links_to_exists() -> None:
    for page in (ROOT / name for name in PAGES):
        for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
            if "://" in target:
                continue
            linked = page.parent / target if target else page
            assert linked.exists(), target
            if anchor:
                assert anchor in anchors(linked), f"{page.name}: {target}#{anchor}"


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


def test_every_room_has_a_line_in_contributing_and_every_line_a_room() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    table = contributing.partition("## Where a line of code belongs")[2].partition("\n\n| package")[
        0
    ]
    named = set(re.findall(r"`([\w/]+)`", re.sub(r"\|[^|]*\|$", "", table, flags=re.MULTILINE)))
    folders = {
        path.parent.relative_to(ROOT).as_posix()
        for package in ("gemm_core", "sddmm", "datasets", "experiments")
        for path in (ROOT / package).rglob("__init__.py")
    }
    # A folder for each kernel, and the methods of each objective.
    within = (
        "sddmm/backends/cuda/kernels/", "experiments/sddmm/", "experiments/spmm/",
        "experiments/training/",
    )  # fmt: skip
    rooms = {folder for folder in folders if not folder.startswith(within)}
    assert rooms - {"gemm_core", "sddmm", "experiments"} <= named
    for room in named:
        assert (ROOT / room).is_dir(), room


def test_every_file_that_a_page_names_exists() -> None:
    packages = ("gemm_core", "sddmm", "datasets", "experiments", "conf", "tests")
    files = [path.as_posix() for name in packages for path in (ROOT / name).rglob("*.*")]
    for page in PAGES:
        text = (ROOT / page).read_text()
        for name in re.findall(r"`([\w./]+\.(?:py|cu|cuh|yaml|csv))`", text):
            if name not in ("report.csv", "NAME.py"):
                assert any(file.endswith(f"/{name}") for file in files), f"{page}: {name}"


def test_every_kernel_of_sddmm_is_on_a_page() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "how_it_works").rglob("*.md"))
    folders = (ROOT / "sddmm" / "backends" / "cuda" / "kernels").iterdir()
    names = [path.name for path in folders if (path / "kernel.cu").exists()]
    assert len(names) > 5
    for name in names:
        assert f"`{name}`" in pages, name
