"""Dense operands that travel in slices: a head, or a few columns, of all rows at a time.

While a rank computes with one slice, the next one comes from all others. A slice's result is whole:
nothing is merged, and sums are added in one process's order, which panels cannot offer. Partial
sums of the transposed product go straight to their owners, who add them by ring position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sddmm.distributed.blocks import Block
from sddmm.distributed.grid import Transfer
from sddmm.distributed.timeline import span
from sddmm.dtypes import common_accumulator
from sddmm.products import find_or_prepare, product, product_problem
from sddmm.sparse.pattern import SparsePattern

_LINE_BYTES = 128  # of a row that a gathering kernel loads at once
_MOST = 8


class Slice(NamedTuple):
    """A head of an operand, or some columns of one without heads."""

    head: int | None
    columns: slice

    def of(self, x: Tensor) -> Tensor:
        """The slice of ([h,] rows, k), (rows, columns of the slice); a view."""
        return (x if self.head is None else x[self.head])[:, self.columns]

    def values(self, x: Tensor) -> Tensor:
        """The values, (nnz,), of ([h,] nnz); all heads may share them."""
        return x if x.dim() == 1 or self.head is None else x[self.head]


def slices_of(x: Tensor) -> list[Slice]:
    """The slices of ([h,] rows, k): its heads, or its columns by lines of memory."""
    if x.dim() == 3:
        return [Slice(head, slice(None)) for head in range(x.shape[0])]
    width = max(_LINE_BYTES // x.element_size(), -(-x.shape[-1] // _MOST))
    begins = range(0, x.shape[-1], width)
    return [Slice(None, slice(begin, begin + width)) for begin in begins]


def whole_pattern(block: Block) -> SparsePattern:
    assert block.whole is not None
    return block.whole


def gathered(
    block: Block, sizes: list[int], count: int, part_of: Callable[[int], Tensor]
) -> Iterator[tuple[int, Tensor, str]]:
    """Number, all rows of the ring, and a label, of each slice, while the next one travels.

    part_of: returns this rank's rows of a slice, (n_r, w), by its number. sizes: the rows at each
    ring position.
    """
    grid = block.grid

    def start(j: int) -> tuple[Transfer, Tensor]:
        own = part_of(j).contiguous()
        every = own.new_empty((sum(sizes), own.shape[-1]))
        pieces = torch.split(every, sizes)
        pieces[grid.ring].copy_(own)
        others = [s for s in range(grid.rings) if s != grid.ring]
        receives = {grid.ring_place(s): pieces[s] for s in others}
        return grid.start(dict.fromkeys(receives, own), receives, f"slice {j}"), every

    begun = start(0) if count else None
    for j in range(count):
        assert begun is not None
        transfer, every = begun
        transfer.wait()
        begun = start(j + 1) if j + 1 < count else None
        yield j, every, f"slice {j}"


def summed(
    block: Block, sizes: list[int], parts: Iterable[tuple[int, Tensor]], dtype: torch.dtype
) -> Iterator[tuple[int, Tensor]]:
    """Number, and this rank's rows of all ranks' sums, (n_r, w), of each slice.

    parts: number and this rank's partial sums, (rows of the ring, w). They travel while the next
    part is computed, and are added in `dtype` by ring position.
    """
    grid = block.grid
    pending: tuple[int, Transfer, list[Tensor]] | None = None
    for j, part in parts:
        pieces = list(torch.split(part.contiguous(), sizes))
        own = pieces[grid.ring]
        others = [s for s in range(grid.rings) if s != grid.ring]
        arriving = {grid.ring_place(s): torch.empty_like(own) for s in others}
        sends = {grid.ring_place(s): pieces[s] for s in others}
        transfer = grid.start(sends, arriving, f"sums of slice {j}")
        if pending is not None:
            yield _finished(pending, dtype)
        terms = [own if s == grid.ring else arriving[grid.ring_place(s)] for s in range(grid.rings)]
        pending = j, transfer, terms
    if pending is not None:
        yield _finished(pending, dtype)


def _finished(
    pending: tuple[int, Transfer, list[Tensor]], dtype: torch.dtype
) -> tuple[int, Tensor]:
    j, transfer, (first, *others) = pending
    transfer.wait()
    total = first.to(dtype, copy=True)
    for other in others:
        total += other
    return j, total


def sliced_product(
    block: Block, sizes: list[int], weights: Tensor, dense: Tensor, alpha: float, dtype: torch.dtype
) -> Tensor:
    """The block's rows of alpha * W X, ([h,] rows, d). weights: ([h,] nnz) of the block.

    dense: this rank's rows of X. dtype: of the result.
    """
    cut = slices_of(dense)
    out = dense.new_empty((*dense.shape[:-2], block.rows, dense.shape[-1]), dtype=dtype)
    for j, rows, label in gathered(block, sizes, len(cut), lambda j: cut[j].of(dense)):
        with span("compute", label):
            own = cut[j].values(weights)
            part = product(whole_pattern(block), own, rows, alpha=alpha, out_dtype=dtype)
            cut[j].of(out).copy_(part)
    return out


def sliced_transposed_product(
    block: Block, sizes: list[int], weights: Tensor, rows: Tensor, alpha: float, dtype: torch.dtype
) -> Tensor:
    """This rank's rows of alpha * W^T X, ([h,] n_r, d). rows: the block's rows of X."""
    cut, wide = slices_of(rows), common_accumulator(weights.dtype, rows.dtype)
    count = sizes[block.grid.ring]
    out = rows.new_empty((*rows.shape[:-2], count, rows.shape[-1]), dtype=dtype)

    def parts() -> Iterator[tuple[int, Tensor]]:
        for j, at in enumerate(cut):
            with span("compute", f"slice {j}"):
                part = product(
                    whole_pattern(block), at.values(weights), at.of(rows).contiguous(),
                    transpose=True, alpha=alpha, out_dtype=wide,
                )  # fmt: skip
            yield j, part

    for j, total in summed(block, sizes, parts(), wide):
        cut[j].of(out).copy_(total)
    return out


def prepare_sliced_product(
    block: Block, values: Tensor, dense: Tensor, transpose: bool, dtype: torch.dtype
) -> None:
    """Prepare the products of slices of operands like these."""
    pattern = whole_pattern(block)
    for at in slices_of(dense):
        own = at.of(dense)
        problem = product_problem(pattern, at.values(values), own, None, transpose, dtype)
        if problem.nnz and own.shape[-1]:
            find_or_prepare(pattern, problem, transpose)
