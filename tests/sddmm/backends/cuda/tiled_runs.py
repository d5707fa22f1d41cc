"""Patterns and operands for first calls by tiles, and how to choose these."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

from gemm_core.runtime.device import Device
from sddmm.backends import base
from sddmm.backends.cuda import one_off, tile_costs
from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.cuda.cost_model import DeviceModel
from sddmm.backends.cuda.device_model import scaled_by_sm_count
from sddmm.backends.cuda.kernels.gather_rows import host as gather_rows
from sddmm.backends.cuda.kernels.registry import KERNELS
from sddmm.backends.cuda.one_off import Candidate, Choice, OneOffPlanner
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest
from sddmm.backends.cuda.tile_costs import MostTiles
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import random_pattern
from tests.sddmm.memory import at_a_cliff

BLOCK, PERSISTENT = "tile_mma_64x64x32", "tile_wgmma_async_128x256x64"
M, N, K = 200, 330, 40
GATHER = Candidate(KERNELS["row_gather"], ROW_IDS, 2.0)


def choose_tiles(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    is_late: bool = False,
    is_probed: bool = False,
    lists_tiles: bool = False,
    most_tiles: MostTiles | None = None,
) -> None:
    """Every single run is by these tiles; is_late: if the analysis says so; is_probed: and a look
    at some columns before. lists_tiles: by those that are not empty; most_tiles: if these are no
    more."""
    request = AnalysisRequest(KERNELS[name].tile_sizes[0], False, True, row_ids_too=is_late)
    tiles = Candidate(KERNELS[name], request, 1.0, lists_tiles)
    choice = Choice([GATHER], tiles, is_probed, most_tiles) if is_late else Choice([tiles, GATHER])
    # No problem is small enough to emulate and large enough for tiles at once.
    monkeypatch.setattr(OneOffPlanner, "_choose", lambda *_: choice)
    monkeypatch.setattr(base, "BACKENDS", [CudaBackend(), *base.BACKENDS[1:]])


def gathering_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask with a slow L2, and by rows."""

    def slow_l2(device: Device) -> DeviceModel:
        return replace(scaled_by_sm_count(device), l2_bytes=1e11)

    for module in (one_off, tile_costs):
        monkeypatch.setattr(module, "device_model", functools.cache(slow_l2))
    monkeypatch.setattr(gather_rows, "mask_us", lambda *_: 1e3)


def mask(m: int = M, n: int = N, reach: int = 40) -> SparsePattern:
    """Long runs of consecutive columns."""
    near = (torch.arange(m)[:, None] - torch.arange(n)).abs() <= reach
    return SparsePattern.from_torch(near).to_csr()


def scattered() -> SparsePattern:
    return random_pattern(M, N, 3000, layout="csr")


def operands(
    dtype: torch.dtype = torch.float16, k: int = K, heads: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    lead = () if heads is None else (heads,)
    return torch.randn(*lead, M, k).to(dtype), torch.randn(*lead, N, k).to(dtype).mT


def new_tensor(
    pattern: SparsePattern, index_dtype: torch.dtype = torch.int32, layout: str = "csr"
) -> torch.Tensor:
    """A torch tensor that comes for the first time, with indices at the end of their memory."""
    values = torch.randn(pattern.nnz).half()
    if layout == "coo":
        indices = torch.stack([pattern.to_coo().row_indices, pattern.col_indices])
        return torch.sparse_coo_tensor(
            indices, values, pattern.shape, is_coalesced=True, check_invariants=False
        )
    crow, cols = (x.to(index_dtype) for x in (pattern.crow_indices, pattern.col_indices))
    return torch.sparse_csr_tensor(
        at_a_cliff(crow), at_a_cliff(cols), values, pattern.shape, check_invariants=False
    )
