"""The README's plot: the quickest peer's kernel time over ours, for every case of the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.bench.svg import BLUE, FAINT, GREY, INK, RED, Picture
from experiments.sddmm.methods import OURS, REIMPLEMENTED
from experiments.sddmm.record import Record

_ROW, _TOP, _LABELS, _PANEL = 26, 92, 214, 340
_BEFORE_ONE, _SCALE = 24, 198  # pixels left of ratio 1, and from there to the last tick


@dataclass(frozen=True)
class Lead:
    """The quickest peer on one case, and its median kernel time over ours."""

    peer: str
    ratio: float


def leads(records: Sequence[Record]) -> dict[tuple[object, ...], tuple[Record, Lead]]:
    """Our record of each case that a peer has a time for, with the quickest peer."""
    medians: dict[tuple[object, ...], dict[str, float]] = {}
    ours = {r.case: r for r in records if r.method == OURS and r.median_ms}
    for r in records:
        if r.median_ms:
            medians.setdefault(r.case, {})[r.method] = r.median_ms
    by_case = {}
    for case, record in ours.items():
        peers = {method: ms for method, ms in medians[case].items() if method != OURS}
        if peers:
            peer = min(peers, key=lambda method: (peers[method], method))
            by_case[case] = (record, Lead(peer, peers[peer] / medians[case][OURS]))
    return by_case


def draw(records: Sequence[Record]) -> str:
    """The plot as SVG: a row per matrix and K, a panel per dtype, a bar per case on a log scale."""
    by_case = leads(records).values()
    rows: dict[tuple[str, int], dict[str, tuple[Record, Lead]]] = {}
    for record, lead in by_case:
        rows.setdefault((record.matrix, record.k), {})[record.dtype] = (record, lead)
    dtypes = sorted({record.dtype for record, _ in by_case})
    octaves = max(1, math.ceil(math.log2(max(lead.ratio for _, lead in by_case))))
    width = _LABELS + _PANEL * len(dtypes) + 12
    height = _TOP + _ROW * len(rows) + 64
    device = ", ".join(dict.fromkeys(record.place_name for record, _ in by_case))
    title = f"Kernel time of the quickest peer over that of sddmm, {device}"
    picture = Picture(width, height, title)
    picture.text(16, 28, title, size=16, bold=True)
    picture.text(
        16, 48, "Right of 1 sddmm is quicker; left of 1, in red, it is slower. Beside each bar: "
        "the ratio and the quickest peer.", color=GREY,
    )  # fmt: skip
    for index, dtype in enumerate(dtypes):
        _axis(picture, dtype, _LABELS + index * _PANEL + _BEFORE_ONE, len(rows), octaves)
    for index, by_dtype in enumerate(rows.values()):
        y = _TOP + index * _ROW
        _row_label(picture, y, next(iter(by_dtype.values()))[0])
        for column, dtype in enumerate(dtypes):
            one = _LABELS + column * _PANEL + _BEFORE_ONE
            if dtype in by_dtype:
                _bar(picture, one, y, by_dtype[dtype][1], octaves)
            else:
                picture.text(one + 5, y + 15, "not measured", size=10.5, color=GREY)
    _footer(picture, height, [record for record, _ in by_case])
    return picture.svg()


def _axis(picture: Picture, dtype: str, one: float, rows: int, octaves: int) -> None:
    """The panel's name, and a vertical line for each power of two; `one` is the x of ratio 1."""
    bottom = _TOP + rows * _ROW
    picture.text(one, _TOP - 22, dtype, size=13, bold=True)
    for octave in range(octaves + 1):
        x = one + _SCALE * octave / octaves
        color, width = (FAINT, 1.0) if octave else (GREY, 1.5)
        picture.line(x, _TOP - 2, x, bottom, color, width)
        picture.text(x, _TOP - 7, f"{2**octave}x", size=10, color=GREY, anchor="middle")


def _row_label(picture: Picture, y: float, record: Record) -> None:
    entries = f"{record.nnz:,} nonzeros"
    picture.text(16, y + 11, f"{record.matrix}, K = {record.k}", bold=True)
    picture.text(16, y + 22, f"{record.m:,} x {record.n:,}, {entries}", size=9.5, color=GREY)


def _bar(picture: Picture, one: float, y: float, lead: Lead, octaves: int) -> None:
    length = _SCALE * math.log2(lead.ratio) / octaves
    is_loss = lead.ratio < 1
    color = RED if is_loss else BLUE
    picture.rect(round(one + min(0, length), 1), y + 3, round(abs(length), 1), 15, color)
    mark = "*" if lead.peer in REIMPLEMENTED else ""
    x = round(one + max(0, length) + 5, 1)
    text = f"{lead.ratio:.2f}x  {lead.peer}{mark}"
    picture.text(x, y + 15, text, size=11.5, color=color if is_loss else INK)


def _footer(picture: Picture, height: float, records: Sequence[Record]) -> None:
    commits = ", ".join(dict.fromkeys(str(r.environment.get("commit"))[:12] for r in records))
    days = sorted({r.date[:10] for r in records})
    picture.text(
        16, height - 36, "Medians; every method verified against float64, then interleaved with "
        "the others on the same data. Preparation and the first call are not in it.",
        size=10.5, color=GREY,
    )  # fmt: skip
    picture.text(
        16, height - 19, f"* re-implemented by us from a description. Measured "
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))} at commit {commits}; records: "
        f"docs/results/h200/peers.", size=10.5, color=GREY,
    )  # fmt: skip
