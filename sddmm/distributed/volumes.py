"""How many bytes a rank receives in a call, how long they take, and the choice between the ways.

Rows of B (or of partial sums) are counted for each rank from the cuts and the touched columns. In
units of n * K elements, with equal parts, a rank of p receives (p - 1) / p in one ring, and
(c - 1) / p + 1 / c - 1 / p with c replicas (Bharadwaj, Buluc and Demmel, IPDPS 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sddmm.distributed.blocks import WAYS, Counts, Way

Operation = Literal["sddmm", "spmm", "spmm_transposed"]


@dataclass(frozen=True)
class Link:
    """The rates of an engine: bytes per us that a rank receives while it sends as many, the us that
    each message costs besides, and the bytes per us at which rows are packed (read and written)."""

    name: str
    bytes_per_us: float
    message_us: float
    pack_bytes_per_us: float

    def us(self, messages: int, size: float) -> float:
        return messages * self.message_us + size / self.bytes_per_us


LINKS = {
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
    values that travel between replicas; value_heads: how many values each nonzero has.
    """

    operation: Operation
    width: int
    heads: int
    item: int
    sum_item: int
    value_item: int
    value_heads: int


def received_bytes(counts: Counts, way: Way, request: Request) -> list[int]:
    """The bytes that each rank receives in a call, by place."""
    return [
        _ring_rows(counts, way, place, request.operation) * _ring_row_bytes(request)
        + _replica_bytes(counts, place, request)
        for place in range(len(counts.rows))
    ]


def predicted_us(counts: Counts, way: Way, request: Request, link: Link) -> float:
    """The time of a call's messages alone: in every step all ranks wait for the largest one."""
    p, c = len(counts.rows), counts.replicas
    q = p // c
    row = _ring_row_bytes(request)
    if way == "ring":
        # All ranks of a ring hold all its panels at once, so every step lasts as long as the
        # largest.
        rows = (q - 1) * max(counts.columns)
        us = link.us(q - 1, rows * row)
    else:
        rows = sum(
            max(counts.touched[place][(place // c - t) % q] for place in range(p))
            for t in range(1, q)
        )
        us = link.us(q - 1, rows * row) + 2 * rows * row / link.pack_bytes_per_us
    if c > 1:
        us += link.us(2, max(_replica_bytes(counts, place, request) for place in range(p)))
    return us


def choose_way(counts: Counts, link: Link) -> tuple[Way, dict[Way, str]]:
    """The way whose messages take less time for long rows, and why the other was refused.

    It depends on the pattern alone, so that all calls on it go one way.
    """
    request = Request("sddmm", 1 << 20, 1, 2, 4, 2, 1)
    us = {way: predicted_us(counts, way, request, link) for way in WAYS}
    chosen: Way = "rows" if us["rows"] < us["ring"] else "ring"
    other: Way = "ring" if chosen == "rows" else "rows"
    share = touched_share(counts)
    reason = (
        f"its messages take {us[other] / us[chosen]:.3g} times as long: the nonzeros of a rank "
        f"touch {share:.1%} of the rows that others hold"
        if us[chosen]
        else "nothing travels"
    )
    return chosen, {other: reason}


def touched_share(counts: Counts) -> float:
    """The touched rows of other ranks over all rows of others, summed over ranks."""
    places = range(len(counts.rows))
    touched = sum(_ring_rows(counts, "rows", place, "sddmm") for place in places)
    every = sum(_ring_rows(counts, "ring", place, "sddmm") for place in places)
    return touched / every if every else 0.0


def _ring_row_bytes(request: Request) -> int:
    item = request.sum_item if request.operation == "spmm_transposed" else request.item
    return request.width * request.heads * item


def _ring_rows(counts: Counts, way: Way, place: int, operation: Operation) -> int:
    """Rows of panels, or of their sums, that a rank receives from its ring."""
    c = counts.replicas
    q = len(counts.rows) // c
    ring, replica = divmod(place, c)
    if way == "ring":
        # Sums come of every panel but the one that starts here; panels, of all but the own one.
        absent = (ring - 1) % q if operation == "spmm_transposed" else ring
        return sum(counts.columns[s * c + replica] for s in range(q) if s != absent)
    others = [s for s in range(q) if s != ring]
    if operation == "spmm_transposed":
        return sum(counts.touched[s * c + replica][ring] for s in others)
    return sum(counts.touched[place][s] for s in others)


def _replica_bytes(counts: Counts, place: int, request: Request) -> int:
    """The bytes from the replicas of a block: rows of A or of sums, and values of S."""
    c = counts.replicas
    ring, replica = divmod(place, c)
    block = [ring * c + j for j in range(c)]
    others = [other for other in block if other != place]
    if request.operation == "spmm":  # sums of the own rows
        rows, item = counts.rows[place] * len(others), request.sum_item
    else:
        rows, item = sum(counts.rows[other] for other in others), request.item
    if request.operation == "sddmm":  # values of the own rows come back
        values = sum(counts.pieces[place][j] for j in range(c) if j != replica) if c > 1 else 0
    else:
        values = sum(counts.pieces[other][replica] for other in others) if c > 1 else 0
    return (
        rows * request.width * request.heads * item
        + values * request.value_heads * request.value_item
    )


def replicated(counts: Counts, replicas: int, request: Request) -> int:
    """The most bytes that a rank would receive by the ring with so many replicas of each block.

    The nonzeros of each rank's rows are taken as spread evenly over the replicas.
    """
    p = len(counts.rows)
    nnz = [sum(pieces) for pieces in counts.pieces]
    even = [[own // replicas] * replicas for own in nnz]
    other = counts._replace(replicas=replicas, pieces=even, touched=[])
    return max(received_bytes(other, "ring", request)[place] for place in range(p))
