"""The plan of a distributed matrix: a prepared plan for each panel of this rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sddmm.distributed.blocks import WAYS, Counts, Way
from sddmm.distributed.operators import Sampling
from sddmm.distributed.pattern import DistributedPattern, link_of
from sddmm.distributed.volumes import (
    Request,
    predicted_us,
    received_bytes,
    replicated,
    touched_share,
)
from sddmm.dtypes import dtype_name
from sddmm.prepared import PreparedPlan


@dataclass(frozen=True)
class DistributedPlan:
    """The panels of this rank, prepared for operands of one kind; `sddmm.plan` makes it.

    plans: of the panels by ring position. prepare_ms: what preparing them took.
    """

    pattern: DistributedPattern
    k: int
    dtype: torch.dtype
    heads: int | None
    out_dtype: torch.dtype
    options: Sampling
    plans: Sequence[PreparedPlan]
    prepare_ms: float
    _run: Callable[[DistributedPlan, Any, Any], Tensor]

    def run(self, a: Any, b: Any) -> Tensor:
        """`sddmm.sddmm` with the plan's options at the nonzeros of this rank's rows, ([h,] nnz).

        Every rank calls it at the same time.
        """
        return self._run(self, a, b)

    def check_fit(self, a: Tensor) -> None:
        """Raise ValueError unless an operand is of the kind that was planned for."""
        heads = a.shape[0] if a.dim() == 3 else None
        for name, planned, came in (
            ("k", self.k, a.shape[-1]), ("heads", self.heads, heads), ("dtype", self.dtype, a.dtype)
        ):  # fmt: skip
            if planned != came:
                raise ValueError(
                    f"the plan was made for {name}={planned}, a and b have {name}={came}"
                )

    @property
    def request(self) -> Request:
        """What a run moves."""
        item = self.dtype.itemsize
        heads = 1 if self.heads is None else self.heads
        return Request("sddmm", self.k, heads, item, 4, self.options.out_dtype.itemsize, heads)

    def explain(self) -> str:
        """The volume of a run, its way, the ways refused and why, and each panel's kernel."""
        S, request = self.pattern, self.request
        counts, grid = S.counts, S.grid
        link = link_of(grid, S.device)
        m, n = S.shape
        heads = "" if self.heads is None else f"{self.heads} heads of "
        volume = received_bytes(counts, S.way, request)
        us = {way: predicted_us(counts, way, request, link) for way in WAYS}
        lines = [
            f"distributed SDDMM of {heads}({m}x{self.k}) @ ({self.k}x{n}), operands "
            f"{dtype_name(self.dtype)}, values {dtype_name(self.out_dtype)}",
            f"  ranks    {grid.size}: rings of {grid.rings}, {grid.replicas} replicas; rank "
            f"{grid.ranks[grid.place]} holds rows {S.rows.start}..{S.rows.stop}, {S.nnz} nonzeros",
            f"  way      {S.way}: this rank receives {volume[grid.place]:,} bytes a run, no rank "
            f"more than {max(volume):,}; {touched_share(counts):.1%} of others' rows are touched",
            f"  messages {us[S.way]:,.0f} us predicted, at the rates of {link.name}; they overlap "
            f"with the panels' kernels",
        ]
        lines += [
            f"  not      {way}: {us[way]:,.0f} us and "
            f"{max(received_bytes(counts, way, request)):,} bytes; {reason}"
            for way, reason in S.refused.items()
        ]
        lines += [f"  not      {line}" for line in _replica_lines(counts, S.way, request)]
        lines.append(f"  prepared in {self.prepare_ms:.3g} ms")
        for s, plan in enumerate(self.plans):
            lines.append(f"  panel {s}: {plan.problem.nnz} nonzeros, backend {plan.backend}")
            lines += [f"    {note}" for note in plan.execute.notes]
        return "\n".join(lines)


def _replica_lines(counts: Counts, way: Way, request: Request) -> list[str]:
    """What other numbers of replicas, for which the mesh is not made, would receive by the ring."""
    here = max(received_bytes(counts, way, request))
    lines = []
    for c in range(1, len(counts.rows) + 1):
        if len(counts.rows) % c == 0 and c != counts.replicas:
            volume = replicated(counts, c, request)
            lines.append(
                f"{c} replicas: about {volume:,} bytes by the ring, {volume / max(here, 1):.3g} "
                f"times as many; the mesh is of {counts.replicas}"
            )
    return lines
