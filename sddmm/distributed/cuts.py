"""Where rows are cut: rank r holds the rows cuts[r] .. cuts[r + 1] - 1."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div

Cuts = tuple[int, ...]

BY = ("nonzeros", "rows")
"""What a cut makes equal. "rows" is torch.chunk's cut, which the shards of a DTensor have."""


def by_rows(rows: int, parts: int, replicas: int = 1) -> Cuts:
    """torch.chunk's cut: parts of ceil(rows / parts) rows, the last ones smaller or empty.

    With replicas the rows are cut into parts / replicas, and each of these into so many again, as
    the shards of a DTensor on a mesh of two dimensions are.
    """
    if replicas > 1:
        blocks = sizes(by_rows(rows, parts // replicas))
        return from_sizes([size for block in blocks for size in sizes(by_rows(block, replicas))])
    each = ceil_div(rows, parts)
    return tuple(min(rows, part * each) for part in range(parts + 1))


def by_nonzeros(row_lengths: Tensor, parts: int) -> Cuts:
    """Cuts after which every part has about as many nonzeros; a row is never split.

    row_lengths: the nonzeros of each row, (m,). No part has more than nnz / parts and one row.
    """
    ends = row_lengths.to("cpu", torch.int64).cumsum(0)
    nnz = int(ends[-1]) if ends.numel() else 0
    if nnz == 0:
        return by_rows(row_lengths.numel(), parts)
    targets = torch.tensor([nnz * part / parts for part in range(1, parts)], dtype=torch.float64)
    # The cut after the first row that reaches the target.
    inner = torch.searchsorted(ends.double(), targets) + 1
    return (0, *(int(x) for x in inner), row_lengths.numel())


def from_sizes(sizes: Sequence[int]) -> Cuts:
    """The cuts of parts of these sizes, in order."""
    cuts = [0]
    for size in sizes:
        cuts.append(cuts[-1] + size)
    return tuple(cuts)


def sizes(cuts: Cuts) -> list[int]:
    return [end - begin for begin, end in pairwise(cuts)]


def check_by(cut: object) -> None:
    """Raise ValueError unless `cut` names something that a cut can make equal."""
    if cut not in BY:
        raise ValueError(f"cut must be one of {', '.join(BY)}, got {cut!r}")
