"""How many bytes a rank receives in a call, how long they take, and the choice between the ways.

Rows of B (or of partial sums) are counted for each rank from the cuts and the touched columns. In
units of n * K elements, with equal parts, a rank of p receives (p - 1) / p in one ring, and
(c - 1) / p + 1 / c - 1 / p with c replicas (Bharadwaj, Buluc and Demmel, IPDPS 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sddmm.distributed.blocks import Counts, Way, is_sliced, sends_touched

# The ways between which the counts of a pattern decide.
_CHOICES: tuple[Way, ...] = ("ring", "rows")

# The bytes of a row of a slice that a room should hold: twice those of columns of a half type.
_SLICE_ROW_BYTES = 1024

Operation = Literal["sddmm", "spmm", "spmm_transposed", "attention", "attention_backward"]


@dataclass(frozen=True)
class Link:
    """The rates of an engine: bytes per us that a rank receives while it sends as many, the us that
    each message costs besides, the bytes per us at which chosen rows are packed (read and written),
    and the us that each of these costs besides."""

    name: str
    bytes_per_us: float
    message_us: float
    pack_bytes_per_us: float = math.inf
    row_us: float = 0.0

    def us(self, messages: int, size: float) -> float:
        return messages * self.message_us + size / self.bytes_per_us


LINKS = {
    # Two H200 of one host: 256 MiB come in 717 us while as many leave; a signal and its answer take
    # 20 us. Chosen rows are not packed, but a kernel writes them: two and four H200 took 0.3 ns
    # longer for each, with rows of 128 and of 512 bytes.
    "memory": Link("writes into each other's memory, H200 of one host", 370e3, 25.0, row_us=0.3e-3),
    # Two H200 of one host: a neighbour exchange of 256 MiB takes 895 us, and one of 16 MiB 93 us,
    # of which 56 are its bytes'; a copy within a GPU's memory moves 4.3 TB/s, read and written.
    "nccl": Link("NCCL over NVLink, two H200 of one host", 300e3, 40.0, 4.3e6),
    # Two processes of one machine with two cores: 64 MiB in 204 ms, 64 bytes in 2.8 ms.
    "gloo": Link("gloo between two processes of one machine", 330.0, 2_800.0, 4e3),
}


@dataclass(frozen=True)
class Request:
    """What a call moves: rows of `width` elements for each of `heads` heads.

    sizes in bytes of an element: item of the dense operand, sum of partial results, value of S's
    values that travel between replicas; value_heads: how many values each nonzero has. v_width: of
    an attention, the elements of a row of v; `width` are those of q and of k.
    """

    operation: Operation
    width: int
    heads: int
    item: int
    sum_item: int
    value_item: int
    value_heads: int
    v_width: int = 0


def received_bytes(counts: Counts, way: Way, request: Request) -> list[int]:
    """The bytes that each rank receives in a call, by place."""
    return [
        sum(_ring_rows(counts, way, place, what) * row for what, row in _travels(request, way))
        + _replica_bytes(counts, place, request)
        for place in range(len(counts.rows))
    ]


def predicted_us(counts: Counts, way: Way, request: Request, link: Link) -> float:
    """The time of a call's messages alone: in every step all ranks wait for the largest one."""
    p, c = len(counts.rows), counts.replicas
    q, us = p // c, 0.0
    pieces = request.heads * (2 if request.v_width else 1)  # of a row, each sent by itself
    for what, row in _travels(request, way):
        if not sends_touched(way):
            # All ranks of a ring hold all its panels at once, so every step lasts as long as the
            # largest.
            steps = q if (what, way) == ("sums of all", "ring") and q > 1 else q - 1
            us += link.us(steps, steps * max(counts.columns) * row)
            continue
        rows = sum(
            max(counts.touched[place][(place // c - t) % q] for place in range(p))
            for t in range(1, q)
        )
        us += link.us(q - 1, rows * row) + 2 * rows * row / link.pack_bytes_per_us
        us += rows * pieces * link.row_us
    if c > 1:
        us += link.us(2, max(_replica_bytes(counts, place, request) for place in range(p)))
    return us


def choose_way(
    counts: Counts, link: Link, finds_room: Callable[[int], bool] = lambda size: False
) -> tuple[Way, dict[Way, str]]:
    """The way whose messages take less time for rows of 512 bytes, and why others were refused.

    finds_room: whether a transfer of so many bytes writes into other ranks' memory. If one of all
    that a rank receives does, products and attention go by slices: whole results, to which nothing
    is added. The choice depends on the pattern alone, so that all calls on it go one way.
    """
    request = Request("sddmm", 256, 1, 2, 4, 2, 1)
    us = {way: predicted_us(counts, way, request, link) for way in _CHOICES}
    chosen: Way = "rows" if us["rows"] < us["ring"] else "ring"
    other: Way = "ring" if chosen == "rows" else "rows"
    share = touched_share(counts)
    reason = (
        f"its messages take {us[other] / us[chosen]:.3g} times as long: the nonzeros of a rank "
        f"touch {share:.1%} of the rows that others hold"
        if us[chosen]
        else "nothing travels"
    )
    places = range(len(counts.rows))
    most = max(_ring_rows(counts, chosen, place, "panels") for place in places)
    if not us[chosen] or not finds_room(most * _SLICE_ROW_BYTES):
        return chosen, {other: reason}
    sliced: Way = "row_slices" if chosen == "rows" else "slices"
    panels = "products and attention add or merge partial results at every step"
    return sliced, {chosen: panels, other: reason}


def touched_share(counts: Counts) -> float:
    """The touched rows of other ranks over all rows of others, summed over ranks."""
    places = range(len(counts.rows))
    touched = sum(_ring_rows(counts, "rows", place, "panels") for place in places)
    every = sum(_ring_rows(counts, "ring", place, "panels") for place in places)
    return touched / every if every else 0.0


# What goes round a ring: the panels of an operand; sums of all panels but the own one's; or those
# of all panels, which follow the panels from their owner and back to it.
_Travel = Literal["panels", "sums", "sums of all"]


def _travels(request: Request, way: Way) -> list[tuple[_Travel, int]]:
    """What travels in the rings in a call, and the bytes of each of its rows."""
    width = (request.width + request.v_width) * request.heads
    panels: tuple[_Travel, int] = ("panels", width * request.item)
    if request.operation == "spmm_transposed":
        return [("sums", width * request.sum_item)]
    if request.operation == "attention_backward":
        # Sums of slices travel as their kernels round them; those of a ring, as they are added.
        item = request.item if is_sliced(way) else request.sum_item
        return [panels, ("sums of all", width * item)]
    return [panels]


def _ring_rows(counts: Counts, way: Way, place: int, what: _Travel) -> int:
    """Rows of panels, or of their sums, that a rank receives from its ring."""
    c = counts.replicas
    q = len(counts.rows) // c
    ring, replica = divmod(place, c)
    if q == 1:
        return 0
    others = [s for s in range(q) if s != ring]
    if way == "slices" and what != "panels":
        return (q - 1) * counts.columns[place]
    if not sends_touched(way):
        absent = {"panels": ring, "sums": (ring - 1) % q, "sums of all": None}[what]
        return sum(counts.columns[s * c + replica] for s in range(q) if s != absent)
    if what == "panels":
        return sum(counts.touched[place][s] for s in others)
    return sum(counts.touched[s * c + replica][ring] for s in others)


def _replica_bytes(counts: Counts, place: int, request: Request) -> int:
    """The bytes from the replicas of a block: rows of A or of sums, and values of S."""
    c = counts.replicas
    ring, replica = divmod(place, c)
    block = [ring * c + j for j in range(c)]
    others = [other for other in block if other != place]
    if c == 1:
        return 0
    received = sum(pieces[replica] for pieces in (counts.pieces[other] for other in others))
    returned = sum(counts.pieces[place][j] for j in range(c) if j != replica)
    every, own = sum(counts.rows[other] for other in others), counts.rows[place] * len(others)
    value = request.value_heads * request.value_item
    row, heads = request.width * request.heads * request.item, request.heads
    sums = request.width * heads * request.sum_item
    v_row, v_sums = request.v_width * heads * request.item, request.v_width * heads
    if request.operation == "sddmm":  # values of the own rows come back
        return every * row + returned * value
    if request.operation == "spmm":
        return own * sums + received * value
    if request.operation == "spmm_transposed":
        return every * row + received * value
    if request.operation == "attention":  # a row of a result has its logarithm beside it
        return every * row + own * (v_sums + heads) * request.sum_item
    # q, the result and its gradient, and two numbers of the logarithms; and sums of q's gradient.
    return every * (row + 2 * v_row + 2 * heads * request.sum_item) + own * sums


def replicated(counts: Counts, replicas: int, request: Request) -> int:
    """The most bytes that a rank would receive by the ring with so many replicas of each block.

    The nonzeros of each rank's rows are taken as spread evenly over the replicas.
    """
    p = len(counts.rows)
    nnz = [sum(pieces) for pieces in counts.pieces]
    even = [[own // replicas] * replicas for own in nnz]
    other = counts._replace(replicas=replicas, pieces=even, touched=[])
    return max(received_bytes(other, "ring", request)[place] for place in range(p))
