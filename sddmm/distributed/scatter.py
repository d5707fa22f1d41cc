"""A whole matrix on one rank, and its division among all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import sddmm.distributed.cuts as cuts
from sddmm.distributed.agreement import agree
from sddmm.distributed.cuts import Cuts
from sddmm.distributed.grid import Grid, check_engine, connect
from sddmm.sparse.containers import parse_sparse
from sddmm.sparse.pattern import SparsePattern


class Source:
    """A whole matrix on one rank, and the cut of its rows, which all ranks know."""

    def __init__(self, grid: Grid, src: int, pattern: SparsePattern | None, values: Any) -> None:
        self._grid, self._src, self._pattern, self._values = grid, src, pattern, values
        self.shape: tuple[int, int] = (0, 0)
        self._cuts: Cuts = ()
        self._nnz_cuts: Cuts = ()
        self._dtypes: tuple[int, ...] = ()

    @classmethod
    def agreed(cls, grid: Grid, S: Any, src: int, cut: str) -> Source:
        def check() -> tuple[Source, Mapping[str, object]]:
            cuts.check_by(cut)
            if src not in grid.ranks:
                raise ValueError(f"src must be one of the ranks {list(grid.ranks)}, got {src!r}")
            facts = {"src": src, "cut": cut}
            if grid.ranks[grid.place] != src:
                return cls(grid, src, None, None), facts
            sparse = parse_sparse(S, use_cache=False)
            pattern = (sparse.pattern.T if sparse.transposed else sparse.pattern).expanded
            pattern.check()
            order, values = pattern.by_row.perm, sparse.values
            if values is not None and order is not None:
                values = values[order]
            return cls(grid, src, pattern.to_csr(), values), facts

        source = agree(grid, "DistributedPattern.scatter", check)
        source._share_cuts(cut)
        return source

    def _share_cuts(self, cut: str) -> None:
        """Send all ranks the shape, the cuts and the dtypes."""
        p, numbers = self._grid.size, [0] * (2 * self._grid.size + 7)
        if self._pattern is not None:
            crow = self._pattern.major_indices
            m, n = self._pattern.shape
            even = cuts.by_rows(m, p, self._grid.replicas)
            begins = cuts.by_nonzeros(crow.diff(), p) if cut == "nonzeros" else even
            kinds = [_DTYPES.index(self._pattern.index_dtype)]
            kinds.append(-1 if self._values is None else _DTYPES.index(self._values.dtype))
            kinds.append(int(self._pattern.device.type == "cuda"))
            numbers = [m, n, *kinds, *begins, *crow[list(begins)].tolist()]
        numbers_of_src = self._grid.all_numbers(numbers)[self._grid.ranks.index(self._src)]
        self.shape = numbers_of_src[0], numbers_of_src[1]
        self._dtypes = tuple(numbers_of_src[2:5])
        self._cuts, self._nnz_cuts = (
            tuple(numbers_of_src[5 : 6 + p]),
            tuple(numbers_of_src[6 + p :]),
        )

    def default_device(self) -> torch.device:
        return (
            torch.device("cuda", torch.cuda.current_device())
            if self._dtypes[2]
            else torch.device("cpu")
        )

    def parts(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
        """This rank's crow_indices, col_indices and values."""
        pattern = self._pattern
        check_engine(self._grid, device)
        connect(self._grid, device)
        crow = self._parts(
            None if pattern is None else pattern.major_indices.diff(), self._cuts, 0, device
        )
        cols = self._parts(
            None if pattern is None else pattern.col_indices, self._nnz_cuts, 0, device
        )
        crow = torch.cat([crow.new_zeros(1), crow.cumsum(0).to(crow.dtype)])
        values = None
        if self._dtypes[1] >= 0:
            values = self._parts(self._values, self._nnz_cuts, 1, device)
        return crow, cols, values

    def _parts(self, whole: Tensor | None, begins: Cuts, kind: int, device: torch.device) -> Tensor:
        grid, dtype = self._grid, _DTYPES[self._dtypes[kind]]
        size = begins[grid.place + 1] - begins[grid.place]
        if whole is None:
            own = torch.empty(size, dtype=dtype, device=device)
            grid.exchange({}, {grid.ranks.index(self._src): own})
            return own
        parts = {p: whole[begins[p] : begins[p + 1]].detach().to(device) for p in range(grid.size)}
        own = parts.pop(grid.place).clone()
        grid.exchange({p: part.contiguous() for p, part in parts.items()}, {})
        return own


_DTYPES = (
    torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64
)  # fmt: skip
