"""The picture of docs/sddmm.md: where each SDDMM kernel keeps the rows of A and of B."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.bench.svg import BLUE, FAINT, GREY, INK, Picture

_L2, _SHARED, _REGISTERS, _WORK = "#e6e9ed", "#f6cf9c", "#a9d8b4", "#dbe8f8"
_OTHER = "#aab2bb"
_CELL, _ROWS, _COLUMNS = 13, 12, 18
_PANEL_WIDTH, _PANEL_HEIGHT, _A_WIDTH, _B_HEIGHT = 460, 316, 46, 40
# Every row holds nonzeros at these columns; a pattern that fills no tile.
_NONZEROS = (
    (1, 4, 9, 15), (0, 6, 7, 13), (3, 8, 11), (2, 5, 10, 16), (1, 7, 12, 17), (4, 6, 9, 14),
    (0, 3, 8, 13, 15), (5, 7, 11), (2, 6, 10, 12, 16), (1, 4, 8, 14), (3, 9, 11, 17), (0, 5, 7, 13),
)  # fmt: skip


@dataclass(frozen=True)
class Range:
    """Rows or columns first .. last - 1 of the drawn matrix, and the memory that holds them."""

    first: int
    last: int
    color: str

    def __contains__(self, index: int) -> bool:
        return self.first <= index < self.last


@dataclass(frozen=True)
class Panel:
    """One kernel: its unit of work (rows x columns of S), and where its operands are kept."""

    title: str
    unit: str
    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    work: tuple[tuple[Range, Range], ...]
    lines: tuple[str, ...]


def _units(rows: tuple[int, int], columns: tuple[int, int]) -> tuple[Range, Range]:
    return Range(*rows, _WORK), Range(*columns, _WORK)


PANELS = (
    Panel(
        "row_gather", "the work of one warp: consecutive nonzeros",
        (Range(6, 7, _REGISTERS),),
        tuple(Range(c, c + 1, _L2) for c in _NONZEROS[6]),
        (_units((6, 7), (0, _COLUMNS)),),
        (
            "Four lanes load the two rows of a nonzero, 64 bytes of each at a time.",
            "Registers: the row of A, while it stays the same. Shared memory: nothing.",
            "Limit: one row of B per nonzero out of L2.",
        ),
    ),
    Panel(
        "windows", "the work of one block: nonzeros in a window of columns",
        (Range(6, 7, _REGISTERS),),
        (Range(6, 12, _SHARED),),
        (_units((0, _ROWS), (6, 12)),),
        (
            "Shared memory: the window's rows of B, loaded once per block.",
            "Registers: a row of A for each pair of its nonzeros in the window.",
            "Limit: the rate of L1 and shared memory; few nonzeros per row and window.",
        ),
    ),
    Panel(
        "tile_mma, tile_wmma", "the work of one block: one tile, whole",
        (Range(4, 8, _SHARED),),
        (Range(6, 12, _SHARED),),
        (_units((4, 8), (6, 12)),),
        (
            "Shared memory: a ring of three stages, slices of k of both operands;",
            "after the main loop the tile's sums, out of which nonzeros are read.",
            "Limit: the arithmetic of whole tiles, however few nonzeros they hold.",
        ),
    ),
    Panel(
        "tile_wgmma", "the work of a cluster of two blocks: two tiles",
        (Range(0, 4, _SHARED), Range(4, 8, _SHARED)),
        (Range(6, 9, _SHARED), Range(9, 12, _SHARED)),
        (_units((0, 4), (6, 12)), _units((4, 8), (6, 12))),
        (
            "Shared memory: a ring of four stages filled by TMA. Each block loads",
            "half of the rows of B that both need. Registers: the sums; each warp",
            "samples its own 16 rows. Limit: the tensor cores at the card's power.",
        ),
    ),
)  # fmt: skip


def draw() -> str:
    """The picture as SVG: a panel per kernel, and what the colours mean."""
    width, height = 2 * _PANEL_WIDTH + 16, 2 * _PANEL_HEIGHT + 50
    picture = Picture(width, height, "Where each SDDMM kernel keeps the rows of A and of B")
    for index, panel in enumerate(PANELS):
        _panel(picture, panel, 16 + index % 2 * _PANEL_WIDTH, 12 + index // 2 * _PANEL_HEIGHT)
    _legend(picture, 16, height - 20)
    return picture.svg()


def _panel(picture: Picture, panel: Panel, x: float, y: float) -> None:
    picture.text(x, y + 14, panel.title, size=14, bold=True, mono=True)
    picture.text(x, y + 31, panel.unit, size=11.5, color=GREY)
    left, top = x + _A_WIDTH + 30, y + 46 + _B_HEIGHT
    grid_width, grid_height = _COLUMNS * _CELL, _ROWS * _CELL
    picture.text(left - 8, top - 14, "B", bold=True, anchor="end")
    picture.text(x + 2, top + grid_height / 2, "A", bold=True)
    picture.rect(left, top, grid_width, grid_height, "none", FAINT)
    picture.rect(left, top - _B_HEIGHT - 4, grid_width, _B_HEIGHT, "none", FAINT)
    picture.rect(left - _A_WIDTH - 4, top, _A_WIDTH, grid_height, "none", FAINT)
    for rows, columns in panel.work:
        picture.rect(
            left + columns.first * _CELL, top + rows.first * _CELL,
            (columns.last - columns.first) * _CELL, (rows.last - rows.first) * _CELL, _WORK, BLUE,
        )  # fmt: skip
    for span in panel.rows:
        picture.rect(
            left - _A_WIDTH - 4, top + span.first * _CELL,
            _A_WIDTH, (span.last - span.first) * _CELL, span.color, GREY,
        )  # fmt: skip
    for span in panel.columns:
        picture.rect(
            left + span.first * _CELL, top - _B_HEIGHT - 4,
            (span.last - span.first) * _CELL, _B_HEIGHT, span.color, GREY,
        )  # fmt: skip
    _nonzeros(picture, panel, left, top)
    for index, line in enumerate(panel.lines):
        picture.text(x, top + grid_height + 20 + 15 * index, line, size=11.5)


def _nonzeros(picture: Picture, panel: Panel, left: float, top: float) -> None:
    for row, columns in enumerate(_NONZEROS):
        for column in columns:
            in_work = any(row in rows and column in cols for rows, cols in panel.work)
            color = BLUE if in_work else _OTHER
            x, y = left + column * _CELL, top + row * _CELL
            picture.rect(x + 3, y + 3, _CELL - 6, _CELL - 6, color, radius=1)


def _legend(picture: Picture, x: float, y: float) -> None:
    entries = (
        (_L2, "read from L2"), (_SHARED, "in shared memory"), (_REGISTERS, "in registers"),
        (_WORK, "this unit of work"), (BLUE, "nonzero computed by it"),
        (_OTHER, "other nonzero"),
    )  # fmt: skip
    for color, text in entries:
        picture.rect(x, y - 10, 12, 12, color, GREY)
        picture.text(x + 18, y, text, size=11.5, color=INK)
        x += 44 + 6.2 * len(text)
