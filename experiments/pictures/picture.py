"""What a picture is, and how its figure, legend and caption are laid out."""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.bench.record import Record
from experiments.pictures.methods import GREY, Look

# Inches: a panel, and the widest figure.
PANEL_WIDTH, PANEL_HEIGHT = 3.6, 2.9
_ENTRY = 1.18  # a legend's entry
_CHARACTERS_PER_INCH = 17.5  # of a caption
_DPI = 150

_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.1,
    "lines.markersize": 5,
    "figure.facecolor": "white",
    "svg.fonttype": "none",  # letters stay text, which is smaller and can be searched
}


@dataclass(frozen=True)
class Picture:
    """A picture of records: the stem of its file, its title, its caption and its figure.

    The caption names the device, the commit and the days of measuring, and says what the marks
    are; the figure shows title and caption too. figure is None where these records give nothing
    to draw, and the caption then is the reason, one sentence.
    """

    name: str
    title: str
    caption: str
    figure: Figure | None = None

    def svg(self) -> str:
        """The figure as SVG; the same records give the same text with the same matplotlib."""
        return self._svg

    @cached_property
    def _svg(self) -> str:
        if self.figure is None:
            raise ValueError(f"{self.name} has no figure: {self.caption}")
        out = io.StringIO()
        # Else ids differ from run to run. The metadata would name the date and the release.
        with style(), matplotlib.rc_context({"svg.hashsalt": self.name}):
            nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
            self.figure.savefig(out, format="svg", metadata=nothing)
        return _smaller(out.getvalue())

    def write(self, folder: Path) -> list[Path]:
        """Write NAME.svg and NAME.png; returns their paths, none where there is no figure."""
        if self.figure is None:
            return []
        svg, png = folder / f"{self.name}.svg", folder / f"{self.name}.png"
        svg.write_text(self.svg(), encoding="utf-8")
        with style():
            self.figure.savefig(png, dpi=_DPI, metadata={"Software": None})
        return [svg, png]


@contextlib.contextmanager
def style() -> Iterator[None]:
    """The settings of matplotlib under which figures are made and saved."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def grid(
    count: int, *, columns: int = 3, height: float = PANEL_HEIGHT
) -> tuple[Figure, list[Axes]]:
    """A figure with this many panels of equal size, row by row."""
    columns = min(columns, count)
    rows = -(-count // columns)
    width = max(PANEL_WIDTH * columns, 1.7 * PANEL_WIDTH)  # a caption needs some room
    figure = Figure(figsize=(width, PANEL_HEIGHT * rows))
    axes = figure.subplots(rows, columns, squeeze=False).flat
    panels = list(axes)
    for ax in panels[count:]:
        ax.remove()
    return figure, panels[:count]


def finish(
    figure: Figure, name: str, title: str, caption: str, legend: Sequence[Line2D] = ()
) -> Picture:
    """The picture of a figure, on which title, legend and caption are put."""
    width, height = figure.get_size_inches()
    columns = max(2, int(width / _ENTRY))
    lines = textwrap.wrap(caption, int(width * _CHARACTERS_PER_INCH))
    top = 0.32 + 0.19 * -(-len(legend) // columns)
    bottom = 0.08 + 0.135 * len(lines)
    height += top + bottom
    figure.set_size_inches(width, height)
    rect = (0, bottom / height, 1, 1 - top / height)
    figure.set_layout_engine("tight", rect=rect, pad=0.5, w_pad=0.8, h_pad=0.8)
    left = 0.06 / width
    figure.text(left, 1 - 0.06 / height, title, va="top", fontsize=10.5, fontweight="bold")
    figure.text(
        left, 0.04 / height, "\n".join(lines), va="bottom", fontsize=7, color="#404040",
        linespacing=1.25,
    )  # fmt: skip
    if legend:
        figure.legend(
            handles=list(legend), loc="upper left", bbox_to_anchor=(0, 1 - 0.26 / height),
            ncols=columns, frameon=False, fontsize=8, handletextpad=0.4, columnspacing=1.4,
            borderaxespad=0, labelspacing=0.3,
        )  # fmt: skip
    return Picture(name, title, caption, figure)


def handles(looks: Mapping[str, Look]) -> list[Line2D]:
    """The entries of a legend."""
    return [Line2D([], [], label=name, **marks(look)) for name, look in looks.items()]


def marks(look: Look, line: str = "none") -> dict[str, Any]:
    """The keywords by which matplotlib plots in this look. line: the style of the line."""
    face = "white" if look.hollow else look.color
    return {
        "color": look.color, "marker": look.marker, "markerfacecolor": face,
        "markeredgecolor": look.color, "markeredgewidth": 1.0, "linestyle": line,
    }  # fmt: skip


def line_at_one(ax: Axes, horizontal: bool = True) -> None:
    """The line on which a method and the reference are equal."""
    draw = ax.axhline if horizontal else ax.axvline
    draw(1, color=GREY, linewidth=1.2, linestyle=(0, (5, 2)), zorder=1.5)


def provenance(records: Sequence[Record]) -> str:
    """The devices, commits and days of these records, one sentence."""
    places = ", ".join(dict.fromkeys(r.place_name for r in records))
    commits = ", ".join(dict.fromkeys(_commit(r) for r in records))
    days = sorted({r.date[:10] for r in records if r.date})
    when = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "on a day not recorded"
    return f"{places}; commit {commits}, measured {when}."


def _commit(r: Record) -> str:
    commit = str(r.environment.get("commit") or "not recorded")[:12]
    return commit + (" with uncommitted changes" if r.environment.get("dirty") else "")


_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_ID = re.compile(r' id="([^"]+)"')
_TAG = re.compile(r"<[^>]+>")


def _smaller(svg: str) -> str:
    """The SVG with coordinates of a hundredth of a point and without what nobody reads."""
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = _TAG.sub(lambda part: _NUMBER.sub(_rounded, part[0]), svg)
    used = set(re.findall(r"#([\w.-]+)", svg))
    svg = _ID.sub(lambda match: match[0] if match[1] in used else "", svg)
    return "\n".join(line.strip() for line in svg.splitlines() if line.strip()) + "\n"


def _rounded(number: re.Match[str]) -> str:
    return f"{round(float(number[0]), 2) + 0.0:g}"
