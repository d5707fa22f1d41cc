"""Matrices and operands of the checks, and their parts on this rank."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

import sddmm
from sddmm import SparsePattern
from sddmm.distributed import DistributedPattern

K = 5


def here() -> torch.device:
    """Where this rank computes: its GPU where NCCL carries messages, else the CPU."""
    if "nccl" in str(dist.get_backend_config()):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@dataclass
class Case:
    """A whole matrix with operands, the same on every rank, and its division among the ranks."""

    whole: SparsePattern
    S: DistributedPattern
    a: Tensor
    b: Tensor
    weights: Tensor

    @property
    def own(self) -> slice:
        """The nonzeros of this rank's rows among all."""
        crow = self.whole.major_indices
        return slice(int(crow[self.S.rows.start]), int(crow[self.S.rows.stop]))

    @property
    def local_a(self) -> Tensor:
        return self.a[..., self.S.rows, :]

    @property
    def local_b(self) -> Tensor:
        return self.b[..., self.S.columns]


def skewed(m: int, n: int, nnz: int, seed: int = 0) -> SparsePattern:
    """A CSR pattern with duplicates whose first rows and columns have most of the nonzeros."""
    generator = torch.Generator().manual_seed(seed)
    rows, cols = (
        (torch.rand(nnz, generator=generator) ** 2 * size).long().clamp(max=max(size - 1, 0))
        for size in (m, n)
    )
    return SparsePattern.from_coo(rows, cols, (m, n)).to_csr().to(here())


def part(whole: SparsePattern, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """crow_indices and col_indices of some rows."""
    crow, cols = whole.major_indices, whole.col_indices
    own = crow[begin : end + 1]
    return own - own[0], cols[int(own[0]) : int(own[-1])]


def divided(
    whole: SparsePattern,
    cuts: list[int],
    column_cuts: list[int] | None = None,
    *,
    heads: int | None = None,
    dtype: torch.dtype = torch.float64,
    k: int = K,
    **options: object,
) -> Case:
    """A case cut at these rows (and columns) of the whole matrix."""
    rank = dist.get_rank(options.get("group"))  # type: ignore[arg-type]
    begin, end = list(pairwise(cuts))[rank]
    columns = None if column_cuts is None else column_cuts[rank + 1] - column_cuts[rank]
    S = DistributedPattern.from_csr(
        *part(whole, begin, end), whole.shape, columns=columns, timeout_s=60, **options
    )
    return with_operands(whole, S, heads=heads, dtype=dtype, k=k)


def with_operands(
    whole: SparsePattern,
    S: DistributedPattern,
    *,
    heads: int | None = None,
    dtype: torch.dtype = torch.float64,
    k: int = K,
) -> Case:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(here(), dtype)

    lead = () if heads is None else (heads,)
    m, n = whole.shape
    return Case(whole, S, draw(*lead, m, k), draw(*lead, n, k).mT, draw(whole.nnz))


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [x.detach().clone().requires_grad_() for x in tensors]


def sampled(S: object, a: Tensor, b: Tensor, weights: Tensor, **options: object) -> Tensor:
    """sddmm times the weights, which are S's values where S can have some."""
    if isinstance(S, DistributedPattern):
        result: Tensor = sddmm.sddmm(S.with_values(weights), a, b, **options)
        return result
    return sddmm.sddmm(S, a, b, **options) * weights
