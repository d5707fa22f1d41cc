"""The pictures of docs/how_it_works/kernels: who holds what in each family of GPU kernels."""

from __future__ import annotations

from experiments.bench.svg import BLUE, FAINT, GREY, PAPER, Picture
from experiments.kernel_panels import COLUMNS, PANELS, ROWS, Panel, Span

_MEMORY = {"l2": "#e6e9ed", "shared": "#f6cf9c", "registers": "#a9d8b4"}
_WORK, _OTHER = "#dbe8f8", "#aab2bb"
_CELL, _A_WIDTH, _B_HEIGHT = 13, 46, 40
_WIDTH, _HEIGHT, _MARGIN = 900, 352, 16
_LEFT, _TOP = _MARGIN + _A_WIDTH + 34, 68 + _B_HEIGHT
_BOXES, _BOX_WIDTH, _BOX_HEIGHT, _GAP = 362, 522, 46, 30


def draw(name: str) -> str:
    """The picture of a family as SVG: the matrix on the left, the memories on the right."""
    panel = PANELS[name]
    picture = Picture(_WIDTH, _HEIGHT, f"{name}: {panel.unit}")
    picture.text(_MARGIN, 28, name, size=15, bold=True, mono=True)
    picture.text(_MARGIN, 48, f"The work of {panel.unit}", size=12, color=GREY)
    _matrix(picture, panel)
    _memories(picture, panel)
    picture.text(_BOXES, 304, "Limit", bold=True)
    picture.text(_BOXES + 42, 304, panel.limit)
    _legend(picture, panel)
    return picture.svg()


def _matrix(picture: Picture, panel: Panel) -> None:
    width, height = COLUMNS * _CELL, ROWS * _CELL
    left_operand, top_operand = panel.operands
    picture.rect(_LEFT, _TOP, width, height, PAPER, FAINT)
    if top_operand:
        picture.text(_LEFT - 10, _TOP - 18, top_operand, bold=True, anchor="end")
        picture.rect(_LEFT, _TOP - _B_HEIGHT - 4, width, _B_HEIGHT, PAPER, FAINT)
    if left_operand:
        middle = _LEFT - _A_WIDTH / 2 - 4
        picture.text(middle, _TOP + height + 18, left_operand, bold=True, anchor="middle")
        picture.rect(_LEFT - _A_WIDTH - 4, _TOP, _A_WIDTH, height, PAPER, FAINT)
    for rows, columns in panel.work:
        _area(picture, rows, columns)
    for span in panel.rows:
        y, length = _TOP + span.first * _CELL, (span.last - span.first) * _CELL
        picture.rect(_LEFT - _A_WIDTH - 4, y, _A_WIDTH, length, _MEMORY[span.memory], GREY)
    for span in panel.columns:
        x, length = _LEFT + span.first * _CELL, (span.last - span.first) * _CELL
        picture.rect(x, _TOP - _B_HEIGHT - 4, length, _B_HEIGHT, _MEMORY[span.memory], GREY)
    for row, stored in enumerate(panel.nonzeros):
        for column in stored:
            mine = any(row in rows and column in columns for rows, columns in panel.work)
            x, y = _LEFT + column * _CELL + 3, _TOP + row * _CELL + 3
            picture.rect(x, y, _CELL - 6, _CELL - 6, BLUE if mine else _OTHER, radius=1)


def _area(picture: Picture, rows: Span, columns: Span) -> None:
    picture.rect(
        _LEFT + columns.first * _CELL, _TOP + rows.first * _CELL,
        (columns.last - columns.first) * _CELL, (rows.last - rows.first) * _CELL, _WORK, BLUE,
    )  # fmt: skip


def _memories(picture: Picture, panel: Panel) -> None:
    """Three boxes from the top down, with how the data comes from one to the next."""
    boxes = (
        ("L2", "l2", panel.l2, panel.to_shared),
        ("shared memory", "shared", panel.shared, panel.to_registers),
        ("registers", "registers", panel.registers, ""),
    )
    for index, (title, memory, text, _) in enumerate(boxes):
        y = _box_top(index)
        fill = _MEMORY[memory] if text else PAPER
        picture.rect(_BOXES, y, _BOX_WIDTH, _BOX_HEIGHT, fill, GREY if text else FAINT, radius=4)
        picture.text(_BOXES + 10, y + 18, title, bold=True, color=GREY if not text else "#1f2328")
        picture.text(_BOXES + 10, y + 36, text or "nothing", color=GREY if not text else "#1f2328")
    if panel.shared:
        for index, (*_, way) in enumerate(boxes[:2]):
            _arrow(picture, _box_top(index) + _BOX_HEIGHT, _box_top(index + 1), 40, way)
    else:  # past the empty box
        middle = _box_top(1) + _BOX_HEIGHT
        _arrow(picture, _box_top(0) + _BOX_HEIGHT, _box_top(2), 470, panel.to_registers, middle)


def _box_top(index: int) -> float:
    return 64 + index * (_BOX_HEIGHT + _GAP)


def _arrow(
    picture: Picture, start: float, end: float, x: float, text: str, text_from: float | None = None
) -> None:
    picture.line(_BOXES + x, start, _BOXES + x, end, BLUE, width=1.5, arrow=True)
    baseline = (start if text_from is None else text_from) + 19
    anchor, x = ("start", x + 12) if text_from is None else ("end", x - 8)
    picture.text(_BOXES + x, baseline, text, size=11.5, color=GREY, anchor=anchor)


def _legend(picture: Picture, panel: Panel) -> None:
    entries = [
        (_MEMORY["l2"], "in L2"), (_MEMORY["shared"], "in shared memory"),
        (_MEMORY["registers"], "in registers"), (_WORK, "this unit of work"),
        (BLUE, "nonzero of it"), (_OTHER, "other nonzero"),
    ]  # fmt: skip
    x, y = _MARGIN, _HEIGHT - 16
    for color, text in entries:
        picture.rect(x, y - 10, 12, 12, color, GREY)
        picture.text(x + 18, y, text, size=11.5)
        x += 46 + 6.2 * len(text)
