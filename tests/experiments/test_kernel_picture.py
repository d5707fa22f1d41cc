"""Every family of GPU kernels has a picture of who holds what, and the picture can be read."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from experiments.kernel_panels import COLUMNS, PANELS, ROWS
from experiments.kernel_picture import draw
from sddmm.backends.cuda.kernels.registry import (
    ATTENTION_KERNELS,
    BLOCK_KERNELS,
    KERNELS,
    SPMM_KERNELS,
)
from sddmm.backends.cuda.spec import KernelSpec
from tests.conftest import ROOT

# Kernels that no registry lists, as each is the only one of its operator.
ALONE = {"row_softmax"}


def test_every_family_of_the_registries_has_a_picture_and_every_picture_a_family() -> None:
    operators = (KERNELS, SPMM_KERNELS, BLOCK_KERNELS, ATTENTION_KERNELS)
    kernels = [kernel for registry in operators for kernel in registry.values()]
    families = {k.source if isinstance(k, KernelSpec) else k.name for k in kernels}
    assert families | ALONE == set(PANELS)


@pytest.mark.parametrize("name", PANELS)
def test_the_picture_is_on_a_page_and_nothing_of_it_is_cut_off(name: str) -> None:
    pages = (ROOT / "docs" / "how_it_works" / "kernels").glob("*.md")
    assert any(f"]({name}.svg)" in page.read_text() for page in pages)
    svg = ElementTree.fromstring(draw(name))
    width, height = float(svg.get("width", 0)), float(svg.get("height", 0))
    for text in (element for element in svg.iter() if element.tag.endswith("text")):
        size, x = float(text.get("font-size", 0)), float(text.get("x", 0))
        long = 0.56 * size * len(text.text or "")  # a sans-serif letter, on the average
        left = {"start": x, "middle": x - long / 2, "end": x - long}[text.get("text-anchor", "")]
        assert left >= 0, text.text
        assert left + long <= width, text.text
        assert float(text.get("y", 0)) <= height, text.text


@pytest.mark.parametrize("name", PANELS)
def test_the_work_lies_within_the_matrix_and_holds_nonzeros(name: str) -> None:
    panel = PANELS[name]
    assert len(panel.nonzeros) == ROWS
    for rows, columns in panel.work:
        assert 0 <= rows.first < rows.last <= ROWS
        assert 0 <= columns.first < columns.last <= COLUMNS
        assert any(c in columns for r in range(rows.first, rows.last) for c in panel.nonzeros[r])
