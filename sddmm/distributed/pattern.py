"""A sparse matrix whose rows are divided among the ranks of a process group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import sddmm.distributed.cuts as cuts
from sddmm.distributed.agreement import agree
from sddmm.distributed.blocks import (
    WAYS,
    Block,
    Counts,
    Way,
    count,
    gather_block,
    is_sliced,
    make_block,
    sends_touched,
    touched_columns,
)
from sddmm.distributed.cuts import Cuts
from sddmm.distributed.grid import (
    TIMEOUT_S,
    Grid,
    backend_of,
    check_engine,
    connect,
    make_grid,
)
from sddmm.distributed.lanes import lane_of, open_lanes
from sddmm.distributed.scatter import Source
from sddmm.distributed.volumes import LINKS, Link, choose_way
from sddmm.operands import shape_text
from sddmm.sparse.indices import checked_shape
from sddmm.sparse.pattern import SparsePattern

RowMaker = Callable[[int, int], "tuple[Any, Any]"]


class DistributedPattern:
    """An m x n sparse matrix whose rows are divided among ranks; each rank holds consecutive ones.

    Make one with `from_csr`, `from_rows` or `scatter`, on all ranks of a group at once. The
    functions of the package take it as S, with each rank's own part of the operands, or DTensors.

    local: this rank's rows, CSR, with all n columns; its own copy of the indices. rows, columns:
    the slices of S's rows and columns whose rows of A and of B this rank holds. values: one for
    each nonzero of `local`, or None. way: how rows of B travel, one of "ring", "rows",
    "slices" and "row_slices" (`explain` of a plan says why). grid: the ranks.
    """

    shape: tuple[int, int]
    local: SparsePattern
    values: Tensor | None
    grid: Grid
    way: Way
    refused: Mapping[Way, str]
    row_cuts: Cuts
    column_cuts: Cuts
    counts: Counts
    block: Block

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.__dict__.update(fields)

    @classmethod
    def from_csr(
        cls,
        crow_indices: Any,
        col_indices: Any,
        shape: tuple[int, int],
        *,
        values: Tensor | None = None,
        columns: int | None = None,
        group: Any = None,
        mesh: Any = None,
        way: Way | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> DistributedPattern:
        """The matrix of shape (m, n) whose next rows are this rank's, in the order of the ranks.

        crow_indices: (rows here + 1,), from 0; col_indices: columns of the whole matrix. columns:
        how many rows of B this rank holds; by default as many as rows of S where m = n, else
        torch.chunk's part of n. group: a process group, by default of all ranks; or mesh: a
        DeviceMesh of one dimension, or of two for replicas: (rings, replicas). way: "ring",
        "rows", "slices" or "row_slices"; by default which of the first two takes less time, or of
        the last two where ranks write into each other's memory and find room for all rows.
        timeout_s: how long to wait for another rank.

        Raises ValueError or TypeError on all ranks where one rank's arguments are wrong, where the
        parts do not add up to the shape, or where ranks differ in what they must have in common.
        """
        grid = make_grid(group, mesh, timeout_s)

        def check() -> tuple[tuple[SparsePattern, int], Mapping[str, object]]:
            whole = checked_shape(shape)
            rows = _length(crow_indices) - 1
            local = SparsePattern.from_csr(crow_indices, col_indices, (rows, whole[1])).clone()
            local.check()
            _check_values(values, local)
            _check_way(way)
            own = _own_columns(grid, whole, rows, columns)
            check_engine(grid, local.device)
            return (local, own), _facts(grid, whole, local, values, way)

        local, own = agree(grid, "DistributedPattern.from_csr", check)
        connect(grid, local.device)
        open_lanes(grid, local.device)
        m, n = checked_shape(shape)
        held = grid.all_numbers([local.shape[0], own])
        row_cuts, column_cuts = (cuts.from_sizes([x[i] for x in held]) for i in (0, 1))
        for what, cut, size in (("rows", row_cuts, m), ("columns", column_cuts, n)):
            if cut[-1] != size:
                parts = " + ".join(map(str, cuts.sizes(cut)))
                raise ValueError(f"the ranks hold {parts} = {cut[-1]} {what}, but S has {size}")
        return cls._build(grid, (m, n), local, values, row_cuts, column_cuts, way)

    @classmethod
    def from_rows(
        cls,
        make: RowMaker,
        shape: tuple[int, int],
        *,
        cut: str = "nonzeros",
        columns: int | None = None,
        group: Any = None,
        mesh: Any = None,
        way: Way | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> DistributedPattern:
        """The matrix whose rows a function makes.

        make: make(begin, end) returns (crow_indices, col_indices) of the rows begin .. end - 1.
        cut: "nonzeros" gives each rank about as many, for which make is called twice, first with as
        many rows for each rank (it must make the same rows again); "rows" is torch.chunk's cut,
        which DTensors have. The other arguments are those of `from_csr`.
        """
        grid = make_grid(group, mesh, timeout_s)
        m = checked_shape(shape)[0]
        begins = cuts.by_rows(m, grid.size, grid.replicas)

        def check() -> tuple[tuple[Any, Any], Mapping[str, object]]:
            cuts.check_by(cut)
            begin, end = begins[grid.place], begins[grid.place + 1]
            return _made(make, begin, end), {"shape": tuple(shape), "cut": cut}

        parts = agree(grid, "DistributedPattern.from_rows", check)
        if cut == "nonzeros":
            lengths = _all_row_lengths(grid, torch.as_tensor(parts[0]), cuts.sizes(begins))
            begins = cuts.by_nonzeros(lengths, grid.size)

            def again() -> tuple[tuple[Any, Any], Mapping[str, object]]:
                return _made(make, begins[grid.place], begins[grid.place + 1]), {}

            parts = agree(grid, "DistributedPattern.from_rows", again)
        return cls.from_csr(
            *parts, shape, columns=columns, group=group, mesh=mesh, way=way, timeout_s=timeout_s
        )

    @classmethod
    def scatter(
        cls,
        S: Any,
        src: int = 0,
        *,
        cut: str = "nonzeros",
        columns: int | None = None,
        group: Any = None,
        mesh: Any = None,
        way: Way | None = None,
        device: torch.device | str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> DistributedPattern:
        """The matrix S of rank `src`, which sends every rank its rows and their values.

        S: anything that `sddmm` takes, read on rank src alone (others may give None). The nonzeros
        come to be ordered by row, in S's order within a row. device: of this rank's part; by
        default the CPU, or the current CUDA device where S is on one. cut and the others: as in
        `from_rows`.
        """
        grid = make_grid(group, mesh, timeout_s)
        source = Source.agreed(grid, S, src, cut)
        here = torch.device(device) if device is not None else source.default_device()
        crow, cols, values = source.parts(here)
        return cls.from_csr(
            crow, cols, source.shape, values=values, columns=columns, group=group, mesh=mesh,
            way=way, timeout_s=timeout_s,
        )  # fmt: skip

    @classmethod
    def _build(
        cls,
        grid: Grid,
        shape: tuple[int, int],
        local: SparsePattern,
        values: Tensor | None,
        row_cuts: Cuts,
        column_cuts: Cuts,
        way: Way | None,
    ) -> DistributedPattern:
        rows = gather_block(grid, local, row_cuts, column_cuts)
        touched = touched_columns(grid, rows)
        counts = count(grid, row_cuts, column_cuts, touched, rows.pieces, local.nnz)
        finds_room = lane_of(grid, "panels").finds_room
        chosen, refused = choose_way(counts, link_of(grid, local.device), finds_room)
        if way is not None and way != chosen:
            chosen, refused = way, {chosen: f"way={way!r} was asked for"}
        block = make_block(
            grid, rows, row_cuts, column_cuts, touched if sends_touched(chosen) else None,
            counts, local.index_dtype, is_sliced(chosen),
        )  # fmt: skip
        fields = {
            "shape": shape, "local": local, "values": values, "grid": grid, "way": chosen,
            "refused": refused, "row_cuts": row_cuts, "column_cuts": column_cuts, "counts": counts,
            "block": block,
        }  # fmt: skip
        return cls(fields)

    @property
    def rows(self) -> slice:
        """The rows of S, of A and of a product S @ X that this rank holds."""
        return slice(*self.row_cuts[self.grid.place : self.grid.place + 2])

    @property
    def columns(self) -> slice:
        """The columns of S whose rows of B, or of X, this rank holds."""
        return slice(*self.column_cuts[self.grid.place : self.grid.place + 2])

    @property
    def nnz(self) -> int:
        """The nonzeros of this rank's rows."""
        return self.local.nnz

    @property
    def device(self) -> torch.device:
        return self.local.device

    @property
    def ring_sizes(self) -> list[int]:
        """The columns at each position of this rank's ring."""
        grid = self.grid
        return [self.counts.columns[grid.ring_place(s)] for s in range(grid.rings)]

    def with_values(self, values: Tensor | None) -> DistributedPattern:
        """This matrix with other values, one for each nonzero of `local`; all else is shared."""
        _check_values(values, self.local)
        return DistributedPattern({**self.__dict__, "values": values})

    def __repr__(self) -> str:
        m, n = self.shape
        rings, replicas = self.grid.rings, self.grid.replicas
        return (
            f"DistributedPattern({m}x{n}, rows {self.rows.start}..{self.rows.stop}, "
            f"nnz={self.nnz} here, {rings}x{replicas} ranks, way={self.way!r}, {self.device})"
        )


def link_of(grid: Grid, device: torch.device) -> Link:
    """The rates of the engine that carries a device's tensors."""
    return LINKS["memory" if lane_of(grid, "panels").is_shared else backend_of(grid.group, device)]


def _all_row_lengths(grid: Grid, crow: Tensor, sizes: Sequence[int]) -> Tensor:
    """The nonzeros of every row of S, (m,), on the CPU; 8 bytes a row travel."""
    most = max(sizes)
    padded = torch.zeros(most, dtype=torch.int64)
    padded[: sizes[grid.place]] = crow.diff().to("cpu", torch.int64)
    parts = grid.all_to_host(padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def _made(make: RowMaker, begin: int, end: int) -> tuple[Any, Any]:
    crow, cols = make(begin, end)
    if _length(crow) != end - begin + 1:
        raise ValueError(
            f"make({begin}, {end}) must return crow_indices of {end - begin + 1} entries, "
            f"got {_length(crow)}"
        )
    return crow, cols


def _own_columns(grid: Grid, shape: tuple[int, int], rows: int, columns: int | None) -> int:
    if columns is None:
        if shape[0] == shape[1]:
            return rows
        return cuts.sizes(cuts.by_rows(shape[1], grid.size, grid.replicas))[grid.place]
    if isinstance(columns, bool) or not isinstance(columns, int) or columns < 0:
        raise ValueError(f"columns must be an integer >= 0, got {columns!r}")
    return columns


def _facts(
    grid: Grid, shape: tuple[int, int], local: SparsePattern, values: Any, way: Way | None
) -> dict[str, object]:
    return {
        "shape": shape,
        "mesh": f"{grid.rings}x{grid.replicas} of ranks {list(grid.ranks)}",
        "device type": local.device.type,
        "index dtype": local.index_dtype,
        "dtype of values": None if values is None else values.dtype,
        "way": way,
    }


def _length(indices: Any) -> int:
    shape = getattr(indices, "shape", None)
    if shape is None or len(shape) != 1 or shape[0] < 1:
        got = shape_text(indices) if isinstance(indices, Tensor) else repr(type(indices))
        raise ValueError(f"crow_indices must be 1-D with an entry per row and one more, got {got}")
    return int(shape[0])


def _check_values(values: Any, local: SparsePattern) -> None:
    if values is None:
        return
    if not isinstance(values, Tensor):
        raise TypeError(f"values must be a torch tensor, got {type(values)}")
    if tuple(values.shape) != (local.nnz,):
        raise ValueError(
            f"values must have one entry per nonzero of this rank, ({local.nnz},), got shape "
            f"{shape_text(values)}"
        )
    if values.device != local.device:
        raise ValueError(f"values are on {values.device} and the indices on {local.device}")


def _check_way(way: Any) -> None:
    if way is not None and way not in WAYS:
        raise ValueError(f"way must be one of {', '.join(WAYS)} or None, got {way!r}")
