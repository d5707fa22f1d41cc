"""Operands that come as DTensors: their local part, and results of their kind."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from torch import Tensor

import sddmm.distributed.cuts as cuts
from sddmm.distributed.cuts import Cuts
from sddmm.distributed.pattern import DistributedPattern
from sddmm.dtypes import DTYPES
from sddmm.ops.autocast import autocast_dtype


class Shards(NamedTuple):
    """The mesh and the placements of a DTensor operand, which its result has too."""

    mesh: Any
    placements: tuple[Any, ...]

    def wrap(self, local: Tensor, rows: int, held: Cuts) -> Any:
        """The DTensor of `rows` rows whose local part is this; ValueError for other cuts."""
        _check_cuts("the result", held, rows, self.mesh)
        dtensor: Any = sys.modules["torch.distributed.tensor"]
        shape = (*local.shape[:-2], rows, local.shape[-1])
        stride = [1] * len(shape)
        for i in reversed(range(len(shape) - 1)):
            stride[i] = stride[i + 1] * shape[i + 1]
        return dtensor.DTensor.from_local(
            local, self.mesh, self.placements, run_check=False, shape=shape, stride=tuple(stride)
        )


def local_part(
    S: DistributedPattern, x: Any, name: str, axis: int, held: Cuts, size: int
) -> tuple[Tensor, Shards | None]:
    """This rank's part of an operand, and how it is sharded if it is a DTensor.

    axis: the dimension that is divided, from the end. held: its cuts; size: all ranks' together.
    """
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name} must be a torch tensor, this rank's part, or a DTensor; got {type(x)}"
        )
    dtensor: Any = sys.modules.get("torch.distributed.tensor")  # a DTensor's class is there
    if dtensor is None or not isinstance(x, dtensor.DTensor):
        return x, None
    ranks = x.device_mesh.mesh.flatten().tolist()
    if tuple(ranks) != S.grid.ranks:
        raise ValueError(
            f"{name} is a DTensor on the mesh of ranks {ranks}, and S is divided among "
            f"{list(S.grid.ranks)}; give both the same mesh"
        )
    placement = dtensor.Shard(x.dim() + axis)
    if any(p != placement for p in x.placements):
        raise ValueError(
            f"{name} is a DTensor with placements {tuple(x.placements)}; each must be {placement}: "
            f"redistribute it"
        )
    if x.shape[axis] != size:
        raise ValueError(
            f"{name} is a DTensor of shape {tuple(x.shape)}, and S needs {size} entries in its "
            f"dimension {x.dim() + axis}"
        )
    _check_cuts(name, held, size, x.device_mesh)
    return x.to_local(), Shards(x.device_mesh, tuple(x.placements))


def cast_for_autocast(x: Tensor, S: DistributedPattern) -> Tensor:
    """The operand in the dtype that autocast gives it; unchanged without autocast."""
    dtype = autocast_dtype(x.dtype, S.device) if x.dtype in DTYPES else x.dtype
    return x if dtype == x.dtype else x.to(dtype)  # as to() takes long even where it does nothing


def _check_cuts(name: str, held: Cuts, size: int, mesh: Any) -> None:
    expected = cuts.by_rows(size, len(held) - 1, mesh.size(1) if mesh.ndim == 2 else 1)
    if held != expected:
        raise ValueError(
            f"{name} as a DTensor has shards of {cuts.sizes(expected)} rows, and S is cut into "
            f"{cuts.sizes(held)}; make S with cut='rows', or give each rank's own tensor"
        )
