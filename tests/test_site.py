"""The site has a page for all that is public, and docstrings come out as they are meant."""

from __future__ import annotations

import importlib
import importlib.util
import re
from types import ModuleType

import pytest

from tests.conftest import ROOT

DOCS = ROOT / "docs"


def extension(name: str) -> ModuleType:
    """A module of docs/_extensions, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "_extensions" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("module", ["sddmm", "sddmm.distributed", "sddmm.testing", "gemm_core"])
def test_every_public_name_is_on_its_page_of_the_api(module: str) -> None:
    page = (DOCS / "api" / f"{module.removeprefix('sddmm.')}.md").read_text()
    documented = re.findall(r"^\.\. (?:auto|py:)\w+:: (?:[\w.]+\.)?(\w+)$", page, re.MULTILINE)
    public = {n for n in importlib.import_module(module).__all__ if not n.startswith("__")}
    assert public - {"fragments"} <= {*documented}


def test_every_page_is_in_the_contents() -> None:
    contents = (DOCS / "conf.py").read_text()
    for path in DOCS.rglob("*.md"):
        page = path.relative_to(DOCS).with_suffix("").as_posix()
        if not page.startswith(("_build", "results/", "how_it_works/kernels/")) and page != "index":
            assert f'"{page}"' in contents, page


DOCSTRING = """Sum of `a` and
b, two `Plan`s.

a, b: (m,) vectors; *stars* and under_scores_ stay.
    More of it.
scale: a `number`.

    total = add(a, b)
"""


def test_a_docstring_becomes_a_list_of_arguments_code_and_links() -> None:
    text = extension("plain_docstrings").as_rst(DOCSTRING.splitlines())
    assert text == [
        r"Sum of \ ``a``\  and b, two \ :py:obj:`~sddmm.Plan`\ s.",
        "",
        r"* **a**, **b**: (m,) vectors; \*stars\* and under\_scores\_ stay. More of it.",
        r"* **scale**: a \ ``number``\ .",
        "",
        ".. code-block:: python",
        "",
        "    total = add(a, b)",
        "",
    ]


def test_links_out_of_the_site_lead_to_its_own_pages() -> None:
    to_site = extension("repository_pages").to_site
    link = "[x](../../CONTRIBUTING.md#{})"
    assert to_site("guides/x", link.format("glossary")) == "[x](../glossary.md)"
    assert to_site("guides/x", link.format("recipes")) == "[x](../extend.md#recipes)"
    assert to_site("x", "[x](../CONTRIBUTING.md)") == "[x](extend.md)"
    assert to_site("x", "[x](results/report.md)") == "[x](path:results/report.md)"
