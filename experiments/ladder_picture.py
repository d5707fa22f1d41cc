"""The picture of docs/ladder.md: a product cut into tiles three times, once for each memory."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.bench.svg import BLUE, FAINT, GREY, PAPER, Picture

_SHARED, _REGISTERS, _PART = "#f6cf9c", "#a9d8b4", "#dbe8f8"
_WIDTH, _HEIGHT, _SIDE, _BAND, _MARGIN = 900, 330, 168, 30, 24
_TOP = 76 + _BAND


@dataclass(frozen=True)
class Level:
    """A square of C and a part of it; what holds the rows of A and the columns of B of the part.

    part: first row, first column, rows and columns of the part, in cells of a square of `cells`.
    """

    title: str
    cells: int
    part: tuple[int, int, int, int]
    memory: str
    lines: tuple[str, str]


LEVELS = (
    Level(
        "C: a block computes a tile", 4, (1, 2, 1, 1), _SHARED,
        ("128 rows of A and 128 columns of B,", "a few k at a time, in shared memory"),
    ),
    Level(
        "The tile: a warp computes a part", 2, (0, 1, 1, 1), _REGISTERS,
        ("its 64 rows and 64 columns of the stage,", "loaded to registers, 16 k at a time"),
    ),
    Level(
        "The part: one instruction, 16 x 8", 8, (2, 4, 2, 1), _REGISTERS,
        ("each lane holds 4 of the sums", "through the whole loop over k"),
    ),
)  # fmt: skip


def draw() -> str:
    """The picture as SVG: three squares, each a part of the one before."""
    picture = Picture(_WIDTH, _HEIGHT, "A product, cut into tiles three times")
    picture.text(_MARGIN, 28, "One product, cut three times (mma_128x128x64)", size=15, bold=True)
    for index, level in enumerate(LEVELS):
        _level(picture, level, _MARGIN + _BAND + index * 296)
    return picture.svg()


def _level(picture: Picture, level: Level, x: float) -> None:
    cell = _SIDE / level.cells
    row, column, rows, columns = level.part
    picture.text(x - _BAND, 54, level.title, bold=True)
    picture.rect(x, _TOP - _BAND - 4, _SIDE, _BAND, PAPER, FAINT)
    picture.rect(x - _BAND - 4, _TOP, _BAND, _SIDE, PAPER, FAINT)
    picture.rect(
        x + column * cell, _TOP - _BAND - 4, columns * cell, _BAND, level.memory, GREY
    )  # fmt: skip
    picture.rect(x - _BAND - 4, _TOP + row * cell, _BAND, rows * cell, level.memory, GREY)
    for i in range(level.cells):
        for j in range(level.cells):
            picture.rect(x + j * cell, _TOP + i * cell, cell, cell, PAPER, FAINT)
    picture.rect(x + column * cell, _TOP + row * cell, columns * cell, rows * cell, _PART, BLUE)
    for number, line in enumerate(level.lines):
        picture.text(x - _BAND, _TOP + _SIDE + 24 + 17 * number, line, size=11.5, color=GREY)
    picture.text(x + _SIDE + 6, _TOP - 14, "B", color=GREY)
    picture.text(x - _BAND + 8, _TOP - 14, "A", color=GREY)
