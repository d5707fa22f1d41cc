"""Products whose operands travel in slices, so that a slice's result is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sddmm.backends.base import Addend, AddingProduct, PreparedProduct
from sddmm.backends.cuda.kernels.add_rows.host import add_rows
from sddmm.distributed.blocks import Block
from sddmm.distributed.early import Early
from sddmm.distributed.slices import (
    Operands,
    ReceivedSlice,
    Rows,
    begin_to_add_up,
    gathered,
    side_by_side,
    slices_of,
    whole_pattern,
)
from sddmm.distributed.timeline import span
from sddmm.dtypes import common_accumulator
from sddmm.products import add_product, find_or_prepare, product, product_problem
from sddmm.sparse.pattern import SparsePattern


def sliced_product(
    block: Block, weights: Tensor, dense: Tensor, alpha: float, dtype: torch.dtype
) -> Tensor:
    """The block's rows of alpha * W X, ([h,] rows, d). weights: ([h,] nnz) of the block.

    dense: this rank's rows of X. dtype: of the result.
    """
    cut = slices_of(dense)
    early, is_busy = None, False
    if block.early is not None and cut:
        early = _EarlyRows(block.early, cut[0].values(weights), cut[0].of(dense), alpha)
        is_busy = block.early.lasts_while_rows_arrive
    slices = _slices_of_operand(block, dense, is_busy, early)
    return _product_of_slices(block, weights, slices, dense, alpha, dtype, early)


class _EarlyRows:
    """The rows of a block's product of which a part is computed before the first slice arrives."""

    def __init__(self, early: Early, weights: Tensor, x: Tensor, alpha: float) -> None:
        """weights: (nnz,) of the block. x: this rank's rows of the slice."""
        self._early, self._weights, self._x, self._alpha = early, weights, x, alpha

    def multiply(self) -> None:
        """Launch the product with the own columns."""
        own, weights = self._early.own, self._weights
        wide = common_accumulator(weights.dtype, self._x.dtype)
        with span("compute", "early rows"):
            taken = own.places.take(weights)
            self._sums = product(own.pattern, taken, self._x, alpha=self._alpha, out_dtype=wide)

    def take_others(self) -> None:
        """Put the weights of the other parts side by side."""
        with span("compute", "other weights"):
            self._others = self._early.others.places.take(self._weights)
            self._rest = self._early.rest.places.take(self._weights)

    def finish(self, rows: Rows, dtype: torch.dtype) -> Tensor:
        """The whole product of the slice. rows: for all columns."""
        early, sums, others = self._early, self._sums, self._early.others.pattern
        part = _product(early.rest.pattern, self._rest, rows, self._alpha, dtype)
        first, last = _first_and_last(rows)
        addend, alpha, weights = Addend(sums, early.rows), self._alpha, self._others
        if not add_product(others, weights, first, addend, part, alpha=alpha, beyond=last):
            more = _product(others, weights, rows, alpha, sums.dtype)
            add_rows(sums, more, early.rows, part, is_compact=True)
        return part


def _slices_of_operand(
    block: Block, dense: Tensor, is_busy: bool, early: _EarlyRows | None = None
) -> Iterator[ReceivedSlice]:
    """is_busy: whether kernels run while the first slice travels."""
    cut = slices_of(dense)

    def own(j: int) -> Operands:
        return (cut[j].of(dense),)

    if early is None:
        return gathered(block, len(cut), own, is_busy=is_busy)
    return gathered(block, len(cut), own, early.multiply, early.take_others, is_busy)


def _product_of_slices(
    block: Block,
    weights: Tensor,
    slices: Iterator[ReceivedSlice],
    dense: Tensor,
    alpha: float,
    dtype: torch.dtype,
    early: _EarlyRows | None = None,
) -> Tensor:
    """`sliced_product` of slices that are on their way."""
    cut = slices_of(dense)
    shape = (*dense.shape[:-2], block.rows, dense.shape[-1])
    out: Tensor | None = None
    for j, others, label, send_next in slices:
        with span("compute", label):
            rows = side_by_side((cut[j].of(dense),), others)
            if j == 0 and early is not None:
                part = early.finish(rows, dtype)
            else:
                own = cut[j].values(weights)
                part = _product(whole_pattern(block), own, rows, alpha, dtype)
            send_next()
            if part.shape == shape:  # the only slice
                return part
            out = part.new_empty(shape) if out is None else out
            cut[j].of(out).copy_(part)
    return dense.new_empty(shape, dtype=dtype) if out is None else out


def _product(
    pattern: SparsePattern, weights: Tensor, rows: Rows, alpha: float, dtype: torch.dtype
) -> Tensor:
    first, last = _first_and_last(rows)
    return product(pattern, weights, first, alpha=alpha, out_dtype=dtype, beyond=last)


def _first_and_last(rows: Rows) -> tuple[Tensor, Tensor | None]:
    """The rows of X, and the last ones where these stand in a tensor of their own."""
    (first,), beyond = rows
    return first, None if beyond is None else beyond[0]


def sliced_transposed_product(
    block: Block, weights: Tensor, rows: Tensor, alpha: float, dtype: torch.dtype
) -> Tensor:
    """This rank's rows of alpha * W^T X, ([h,] n_r, d). rows: the block's rows of X."""
    return _begin_transposed_product(block, weights, rows, alpha, dtype)()


def _begin_transposed_product(
    block: Block, weights: Tensor, rows: Tensor, alpha: float, dtype: torch.dtype
) -> Callable[[], Tensor]:
    """Start `sliced_transposed_product`; the function that it gives waits for the last sums and
    returns the result."""
    cut, wide = slices_of(rows), common_accumulator(weights.dtype, rows.dtype)
    count = block.widths[block.grid.ring]
    out = rows.new_empty((*rows.shape[:-2], count, rows.shape[-1]), dtype=dtype)

    def parts() -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        for j, at in enumerate(cut):
            with span("compute", f"slice {j}"):
                part = product(
                    whole_pattern(block), at.values(weights), at.of(rows).contiguous(),
                    transpose=True, alpha=alpha, out_dtype=wide,
                )  # fmt: skip
            yield j, (part,)

    finish = begin_to_add_up(block, parts(), lambda j: (cut[j].of(out),))

    def end() -> Tensor:
        finish()
        return out

    return end


class Term(NamedTuple):
    """What the weights are multiplied by in one of two products: X, and the result's dtype."""

    x: Tensor
    dtype: torch.dtype


def both_sliced_products(
    block: Block, weights: Tensor, direct: Term, transposed: Term, alpha: float
) -> tuple[Tensor, Tensor]:
    """`sliced_product` and `sliced_transposed_product` of the same weights, each of which computes
    while the rows and the sums of the other travel."""
    slices = _slices_of_operand(block, direct.x, is_busy=True)
    end = _begin_transposed_product(block, weights, transposed.x, alpha, transposed.dtype)
    sums = _product_of_slices(block, weights, slices, direct.x, alpha, direct.dtype)
    return sums, end()


def prepare_sliced_product(
    block: Block, values: Tensor, dense: Tensor, transpose: bool, dtype: torch.dtype
) -> None:
    """Prepare the products of slices of operands like these."""
    pattern = whole_pattern(block)
    for at in slices_of(dense):
        own = at.of(dense)
        _prepare(pattern, at.values(values), own, transpose, dtype)
    early = block.early
    if early is not None and not transpose:
        wide = common_accumulator(values.dtype, dense.dtype)
        for at in slices_of(dense)[:1]:
            weights, x = at.values(values)[:0], at.of(dense)  # of the weights the dtype is read
            _prepare(early.own.pattern, weights, x, False, wide)
            _prepare(early.rest.pattern, weights, x, False, dtype)
            run = _prepare(early.others.pattern, weights, x, False, dtype)
            if not isinstance(run, AddingProduct) or not run.takes_addend:
                _prepare(early.others.pattern, weights, x, False, wide)


def _prepare(
    pattern: SparsePattern, values: Tensor, dense: Tensor, transpose: bool, dtype: torch.dtype
) -> PreparedProduct | None:
    problem = product_problem(pattern, values, dense, None, transpose, dtype)
    if not problem.nnz or not dense.shape[-1]:
        return None
    return find_or_prepare(pattern, problem, transpose)
