"""The README says what is so."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

from experiments.pages import PAGES
from gemm_core.ladder.registry import KERNELS
from sddmm.cache import MAX_BYTES
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


def test_the_cache_has_the_bound_that_the_limits_name() -> None:
    assert "bounded by bytes, 2 GiB by default" in " ".join(README.split())
    assert MAX_BYTES == 2 * 2**30


def test_every_gemm_kernel_belongs_to_a_section_of_the_ladder_and_has_records() -> None:
    ladder = (ROOT / "docs" / "ladder.md").read_text()
    families = [
        family for heading in re.findall(r"^### (.*)$", ladder, re.MULTILINE)
        for family in re.findall(r"`([^`]+)`", heading)
    ]  # fmt: skip
    summary = (ROOT / "docs" / "results" / "h200" / "gemm" / "summary.md").read_text()
    unmeasured = {name for name, spec in KERNELS.items() if spec.h200_tflops is None}
    for name in KERNELS:
        assert any(fnmatch(name, family) for family in families), name
        assert f"| {name} " in summary or name in unmeasured, name
    assert ("not measured yet" in ladder) == bool(unmeasured)


def test_the_lines_that_the_ladder_quotes_are_in_the_sources() -> None:
    ladder = (ROOT / "docs" / "ladder.md").read_text()
    quoted = re.findall(r"```cuda\n(.*?)```", ladder, re.DOTALL)
    sources = [unindented(path.read_text()) for path in (ROOT / "gemm_core").rglob("*.cu*")]
    assert len(quoted) >= 5
    for lines in quoted:
        assert any(unindented(lines) in source for source in sources), lines


def unindented(text: str) -> str:
    return "".join(f"{line.strip()}\n" for line in text.splitlines())


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
        "experiments/training/", "experiments/attention/",
    )  # fmt: skip
    rooms = {folder for folder in folders if not folder.startswith(within)}
    assert rooms - {"gemm_core", "sddmm", "experiments"} <= named
    for room in named:
        assert (ROOT / room).is_dir(), room


def test_every_file_that_a_page_names_exists() -> None:
    packages = ("gemm_core", "sddmm", "datasets", "experiments", "conf", "tests", "docs")
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


def test_the_pages_name_the_studies_that_warm_up_for_a_short_fixed_time() -> None:
    studies = {
        path.stem
        for path in (ROOT / "conf" / "study").glob("*.yaml")
        if "warm_up_ms: 4," in path.read_text()
    }
    contributing = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    named = re.search(r"the studies ([^:.]*?) take 4 ms", contributing)
    assert named is not None
    assert set(re.findall(r"`(\w+)`", named[1])) == studies


def test_the_page_of_libraries_names_what_the_package_and_its_extras_need() -> None:
    page = (ROOT / "docs" / "libraries.md").read_text()
    users, _, _ = (ROOT / "pyproject.toml").read_text().partition("dev = [")
    needed = {*re.findall(r'"([a-z][\w-]*)(?:\[\w+\])?>=', users)} - {"setuptools", "torch"}
    assert len(needed) >= 20
    assert not {name for name in needed if f"`{name}`" not in page}


def test_every_folder_of_records_is_linked_from_the_page_of_performance() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    results = ROOT / "docs" / "results"
    for path in results.rglob("records.jsonl"):
        assert f"(results/{path.relative_to(results).as_posix()})" in page
