"""Verifies products of a sparse and a dense matrix against float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import sddmm
from experiments.bench.verify import Verdict
from sddmm import testing
from sddmm.sparse.indices import expand
from sddmm.sparse.views import CompressedView

# Above this many multiply-adds a random sample of the rows is verified instead of all.
_FULL_WORK = 1_000_000_000

# What half types may be off in the results of peers that add partial sums as halves: so many
# roundings of the sum of magnitudes. They add with atomics, in no order that a bound could follow.
_PEER_ROUNDINGS = 16


class Reference:
    """The rows of a product in float64, and how far a result may be from them.

    view: the sparse matrix as CSR, `columns` wide. weights: ([heads,] nnz), in the order of the
    pattern that the view is of. The largest error of a verdict is relative to the sum of the
    magnitudes |weight| |x| of each entry, or to the smallest normal number if that is larger.
    """

    def __init__(
        self,
        view: CompressedView,
        columns: int,
        weights: Tensor,
        dense: Tensor,
        seed: int = 0,
        full_work: int = _FULL_WORK,
    ) -> None:
        rows = view.indptr.numel() - 1
        self._shape = (*dense.shape[:-2], rows, dense.shape[-1])
        each = dense.shape[-1] * math.prod(dense.shape[:-2])
        self._rows = sampled_rows(view.indptr, each, seed, full_work)
        positions, local_rows = nonzeros_of(view.indptr, self._rows)
        own = sddmm.SparsePattern.from_coo(
            local_rows, view.indices[positions].long(), (self._rows.numel(), columns)
        )
        if view.perm is not None:
            positions = view.perm[positions]
        self._pattern, self._dense = own, dense
        self._weights = weights[..., positions]
        self._truth = testing.spmm_reference(own, dense, values=self._weights)
        self._size = testing.spmm_reference(own, dense.abs(), values=self._weights.abs())
        self._bounds: dict[torch.dtype, Tensor] = {}

    def check(self, result: Tensor, partial_sums_round: bool = False) -> Verdict:
        """Compare a method's result, ([heads,] rows, d).

        partial_sums_round: the method is a peer that adds partial sums in the dtype of its result.
        """
        if tuple(result.shape) != self._shape:
            return Verdict(0, math.prod(self._shape), float("inf"))
        got = result.detach()[..., self._rows, :]
        bound = self._bound(got.dtype)
        if partial_sums_round and got.dtype.itemsize == 2:
            bound = bound + _PEER_ROUNDINGS * torch.finfo(got.dtype).eps / 2 * self._size
        wrong = int(testing.mismatches(got, self._truth, bound).sum())
        normal = torch.finfo(got.dtype).smallest_normal  # below it every dtype is coarse
        errors = (got.double() - self._truth).abs() / self._size.clamp_min(normal)
        worst = float(errors.nan_to_num(nan=torch.inf).max()) if errors.numel() else 0.0
        return Verdict(got.numel(), wrong, worst)

    def _bound(self, dtype: torch.dtype) -> Tensor:
        """The error bound of a result of this dtype, which a method chooses for itself."""
        if dtype not in self._bounds:
            self._bounds[dtype] = testing.spmm_error_bound(
                self._pattern, self._dense, self._truth, values=self._weights, out_dtype=dtype
            )
        return self._bounds[dtype]


def sampled_rows(indptr: Tensor, each: int, seed: int, full_work: int) -> Tensor:
    """All rows, or a seeded sample with the first, the last and the longest among them.

    each: the multiply-adds of a nonzero. full_work: those of the rows that are chosen at most.
    """
    rows = indptr.numel() - 1
    everything = torch.arange(rows, device=indptr.device)
    # An entry of an empty row is written too.
    work = (indptr.diff().long() + 1) * each
    if rows == 0 or int(work.sum()) <= full_work:
        return everything
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(rows, generator=generator).to(indptr.device)
    chosen = order[work[order].cumsum(0) <= full_work]
    ends = torch.stack([everything[0], everything[-1], work.argmax()])
    return torch.cat([chosen, ends]).unique()


def nonzeros_of(indptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The positions of the nonzeros of these rows, row by row, and the index of each one's row."""
    indptr = indptr.long()
    starts, lengths = indptr[rows], (indptr[rows + 1] - indptr[rows])
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    local_rows = expand(ends, int(ends[-1]))
    within = torch.arange(local_rows.numel(), device=indptr.device) - ends[local_rows]
    return starts[local_rows] + within, local_rows
