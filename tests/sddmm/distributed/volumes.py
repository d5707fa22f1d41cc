"""The bytes that a call sends, counted where torch.distributed gets them, against the formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

import sddmm
from sddmm.distributed import DistributedPattern
from sddmm.distributed.lanes import lane_of
from sddmm.distributed.peer_memory import PeerMemory, RemoteWrite
from tests.sddmm.distributed.cases import Case, K, part, skewed
from tests.sddmm.distributed.host_memory import HostMemory


@contextmanager
def counted() -> Iterator[list[int]]:
    """The bytes [sent, received] of tensors within the context, in messages and by writing into
    other ranks' memory; the second are known behind it, where all ranks come."""
    total, batch, sent = [0, 0], dist.batch_isend_irecv, [0] * dist.get_world_size()

    def watch(operations: list[dist.P2POp]) -> list[dist.Work]:
        for x in operations:
            total[x.op is dist.irecv] += x.tensor.numel() * x.tensor.element_size()
        return batch(operations)

    def watched(write: Callable[..., None]) -> Callable[..., None]:
        def count(memory: Any, room: int, parts: Sequence[RemoteWrite], thread_blocks: int) -> None:
            for peer, _, x, at in parts:
                rows = x if at is None else x[..., :1, :].expand(*x.shape[:-2], at.numel(), -1)
                sent[peer] += rows.numel() * rows.element_size()
            write(memory, room, parts, thread_blocks)

        return count

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(dist, "batch_isend_irecv", watch))
        for kind in (HostMemory, PeerMemory):
            stack.enter_context(mock.patch.object(kind, "write", watched(kind.write)))
        yield total
    written = [sent] * dist.get_world_size()
    dist.all_gather_object(written, sent)
    total[0] += sum(sent)
    total[1] += sum(each[dist.get_rank()] for each in written)


def touched(case: Case, place: int) -> dict[int, int]:
    """By place, the columns held there that have nonzeros in the block that `place` computes."""
    S, c = case.S, case.S.grid.replicas
    first = place // c * c
    rows = slice(S.row_cuts[first], S.row_cuts[first + c])
    crow, cols = case.whole.major_indices, case.whole.col_indices
    own = cols[int(crow[rows.start]) : int(crow[rows.stop])].unique()
    return {
        other: int(((own >= S.column_cuts[other]) & (own < S.column_cuts[other + 1])).sum())
        for other in range(S.grid.size)
    }


def expected(case: Case, operation: str) -> int:
    """What this rank receives, from the definitions: rows of 8-byte numbers, and values."""
    S, heads = case.S, 1 if case.a.dim() == 2 else case.a.shape[0]
    c, here, p = S.grid.replicas, S.grid.place, S.grid.size
    ring = [place for place in range(p) if place % c == here % c]
    columns = [S.column_cuts[r + 1] - S.column_cuts[r] for r in range(p)]
    rows = [S.row_cuts[r + 1] - S.row_cuts[r] for r in range(p)]
    if S.way == "slices" and operation == "spmm_transposed":
        moved = (len(ring) - 1) * columns[here]
    elif S.way in ("ring", "slices"):
        absent = here if operation != "spmm_transposed" else (here - c) % p
        moved = sum(columns[r] for r in ring if r != absent)
    elif operation == "spmm_transposed":
        moved = sum(touched(case, r)[here] for r in ring if r != here)
    else:
        moved = sum(touched(case, here)[r] for r in ring if r != here)
    replicas = [r for r in range(here // c * c, here // c * c + c) if r != here]
    if operation == "spmm":
        moved += rows[here] * len(replicas)
    else:
        moved += sum(rows[r] for r in replicas)
    crow, cols = case.whole.major_indices, case.whole.col_indices
    values = 0
    for other in replicas:  # whose rows' nonzeros are computed here, or the other way round
        source, column_class = (here, other % c) if operation == "sddmm" else (other, here % c)
        own = cols[int(crow[S.row_cuts[source]]) : int(crow[S.row_cuts[source + 1]])]
        owners = torch.bucketize(
            own, torch.tensor(S.column_cuts[1:], device=own.device), right=True
        )
        values += int((owners % c == column_class).sum())
    value_heads = heads if operation == "sddmm" else 1
    return 8 * (moved * K * heads + values * value_heads)


def check(case: Case, what: str) -> None:
    S, w = case.S, case.weights[case.own]
    calls = {
        "sddmm": lambda: sddmm.sddmm(S, case.local_a, case.local_b),
        "spmm": lambda: sddmm.spmm(S, case.local_b.mT, values=w),
        "spmm_transposed": lambda: sddmm.spmm(S, case.local_a, values=w, transpose=True),
    }
    for operation, call in calls.items():
        before = S.grid.traffic.received
        with counted() as total:
            call()
        assert total[1] == expected(case, operation), f"{what}: {operation}"
        assert total[1] == S.grid.traffic.received - before, f"{what}: traffic of {operation}"
        totals = [[0, 0]] * dist.get_world_size()
        dist.all_gather_object(totals, total)
        sent, received = (sum(each[i] for each in totals) for i in (0, 1))
        assert sent == received, f"{what}: {operation}"
    plan = sddmm.plan(S, k=K, dtype=torch.float64, heads=None if case.a.dim() == 2 else 2)
    told = f"{S.way}: this rank receives {expected(case, 'sddmm'):,} bytes a run"
    assert told in plan.explain(), f"{what}: {plan.explain()}"


def check_choice() -> None:
    """Few touched rows are sent alone; many come with their whole panels. Where ranks write into
    each other's memory, products go by slices."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for nnz, way, by_slices in ((30, "rows", "row_slices"), (30_000, "ring", "slices")):
        whole = skewed(200, 200, nnz)
        begin, end = 200 * rank // ranks, 200 * (rank + 1) // ranks
        S = DistributedPattern.from_csr(*part(whole, begin, end), whole.shape)
        is_shared = lane_of(S.grid, "panels").is_shared
        assert S.way == (by_slices if is_shared else way)
        others = [{"rows": "ring", "ring": "rows"}[way]]
        assert list(S.refused) == ([way, *others] if is_shared else others)
