"""The picture of a call on every rank: when it computed and when it waited for messages."""

from __future__ import annotations

import json
from collections.abc import Sequence

from experiments.bench.svg import BLUE, FAINT, GREEN, GREY, INK, ORANGE, Picture
from experiments.bench.table import figure
from experiments.distributed.record import Record

_LEFT, _RIGHT, _TOP = 150, 24, 66
_BAR, _GAP, _TITLE = 16, 4, 30
_TRANSFER = 6  # the height of a bar of messages, below that of its rank
_WIDTH = 860


def chosen(records: Sequence[Record]) -> list[Record]:
    """The records of the matrix that has most of them, and the largest of such, by most ranks."""
    drawn = [r for r in records if r.spans]
    matrices: dict[str, list[Record]] = {}
    for r in drawn:
        if r.ranks == max(other.ranks for other in drawn):
            matrices.setdefault(json.dumps(r.definition, sort_keys=True), []).append(r)
    return max(matrices.values(), key=lambda own: (len(own), own[0].nnz * own[0].k), default=[])


def draw(records: Sequence[Record]) -> str:
    """An SVG with a group of bars for each record, one bar for each rank."""
    height = _TOP + sum(_TITLE + r.ranks * _lane(r) + 22 for r in records)
    picture = Picture(_WIDTH, height, "Computing and waiting of every rank in one call")
    picture.text(20, 26, "One call on every rank", size=15, bold=True)
    picture.rect(20, 38, 12, 12, BLUE)
    picture.text(38, 48, "a panel's kernels", color=GREY)
    picture.rect(170, 38, 12, 12, ORANGE)
    picture.text(188, 48, "waiting for messages", color=GREY)
    if any(_has_transfers(r) for r in records):
        picture.rect(350, 41, 12, 6, GREEN)
        picture.text(368, 48, "messages on their way", color=GREY)
    y = float(_TOP)
    for r in records:
        y = _draw_record(picture, r, y)
    return picture.svg()


def _draw_record(picture: Picture, r: Record, y: float) -> float:
    """Draw the bars of a record below y; returns where they end."""
    grid = f"{r.ranks} ranks" + (f", {r.replicas} replicas" if r.replicas > 1 else "")
    picture.text(20, y + 16, f"{r.name}, {grid}, {r.way}", bold=True)
    picture.text(
        _WIDTH - _RIGHT, y + 16, f"{r.matrix}, K = {r.k}, {r.dtype}", color=GREY, anchor="end"
    )
    y += _TITLE
    end_us = max((span[3] for spans in r.spans for span in spans), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / end_us
    for rank, spans in enumerate(r.spans):
        picture.text(_LEFT - 10, y + 12, f"rank {rank}", anchor="end", color=GREY)
        picture.rect(_LEFT, y, _WIDTH - _LEFT - _RIGHT, _BAR, FAINT)
        for kind, label, begin, end in spans:
            if kind == "transfer":
                at, width = round(_LEFT + begin * scale, 1), round((end - begin) * scale, 1)
                picture.rect(at, y + _BAR + 1, max(0.5, width), _TRANSFER, GREEN)
                continue
            width = max(0.5, (end - begin) * scale)
            color = BLUE if kind == "compute" else ORANGE
            picture.rect(round(_LEFT + begin * scale, 1), y, round(width, 1), _BAR, color)
            name = label.removeprefix("panel ").removeprefix("slice ")
            if kind == "compute" and width > 14:
                x = round(_LEFT + (begin + end) / 2 * scale, 1)
                picture.text(x, y + 12, name, size=10, color="#ffffff", anchor="middle")
        y += _lane(r)
    picture.text(_LEFT, y + 10, "0", size=10, color=INK)
    end = f"{figure(end_us / 1e3)} ms"
    picture.text(_WIDTH - _RIGHT, y + 10, end, size=10, color=INK, anchor="end")
    return y + 22


def _has_transfers(r: Record) -> bool:
    return any(span[0] == "transfer" for spans in r.spans for span in spans)


def _lane(r: Record) -> int:
    """The height of a rank's bars."""
    return _BAR + _GAP + (_TRANSFER + 2 if _has_transfers(r) else 0)
