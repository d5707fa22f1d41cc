"""Measures the operations on one matrix by all ranks, in turns with one process on all of it.

All ranks take part in every step; how many samples there are follows from the slowest rank's first
call, which all know, so that none waits for another that has finished.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from experiments.bench.config import Timing
from experiments.bench.environment import environment
from experiments.bench.errors import ExperimentError
from experiments.distributed.operations import (
    OPERATIONS,
    Operands,
    of_rank,
    verify,
    whole,
)
from experiments.distributed.ranks import all_told, told_by_first
from experiments.distributed.record import Record
from experiments.training.case import Case
from sddmm.distributed import DistributedPattern, record
from sddmm.distributed.pattern import link_of
from sddmm.distributed.travel import panels_of, reduce_panels
from sddmm.distributed.volumes import Request, predicted_us
from sddmm.dtypes import DTYPES


class Division(NamedTuple):
    """A case on the CPU, this rank's part of it, and the operands of one process on rank 0.

    one: None on other ranks, and where rank 0 has no room for the whole, which `reason` says.
    """

    case: Case
    S: DistributedPattern
    own: Operands
    one: Operands | None
    reason: str
    device: torch.device


def divide(case: Case, way: str, replicas: int, device: torch.device) -> Division:
    """Cut the case's matrix by nonzeros; every rank takes its rows."""
    size = dist.get_world_size()
    if size % replicas:
        raise ExperimentError(f"replicas must divide the {size} ranks, got {replicas}")
    mesh = init_device_mesh(device.type, (size // replicas, replicas))
    crow, cols = case.pattern.major_indices, case.pattern.col_indices

    def make(begin: int, end: int) -> tuple[Any, Any]:
        own = crow[begin : end + 1]
        part = cols[int(own[0]) : int(own[-1])]
        return (own - own[0]).to(device), part.to(device)

    chosen: Any = None if way == "auto" else way
    S = DistributedPattern.from_rows(make, case.pattern.shape, mesh=mesh, way=chosen)
    own, one, reason = of_rank(case, S, device), None, ""
    if dist.get_rank() == 0:
        try:
            one = whole(case, device)
        except torch.OutOfMemoryError as error:
            reason = str(error).splitlines()[0]
    return Division(case, S, own, one, told_by_first(reason), device)


def measure(name: str, divided: Division, timing: Timing, fields: dict[str, Any]) -> Record:
    """The record of an operation. fields: what names the case, its key and its
    session."""
    call = OPERATIONS[name][0]
    S, device = divided.S, divided.device
    result = Record(
        status="failed", environment=environment(device.type),
        method=name, ranks=S.grid.size, replicas=S.grid.replicas, way=S.way,
        rank_nnz=all_told(S.nnz), one_reason=divided.reason, **fields,
    )  # fmt: skip
    before = S.grid.traffic.received
    results = call(divided.own)
    result.received_bytes = all_told(S.grid.traffic.received - before)
    verdicts = all_told(verify(name, divided.case, S, results))
    result.checked = sum(v.checked for v in verdicts)
    result.wrong = sum(v.wrong for v in verdicts)
    result.error = max(v.error or 0.0 for v in verdicts)
    if result.wrong:
        result.status = "wrong"
        result.reason = f"{result.wrong} of {result.checked} values are outside the error bound"
        return result
    del results
    _take_samples(call, divided, timing, result)
    result.messages_ms = _messages_ms(name, divided)
    result.predicted_messages_ms = _predicted_ms(name, divided)
    with record(device) as timeline:
        call(divided.own)
    result.spans = all_told([list(span) for span in timeline.spans()])
    result.status = "ok"
    return result


def _take_samples(
    call: Callable[[Operands], Any], divided: Division, timing: Timing, result: Record
) -> None:
    """Fill in the samples of the ranks and of one process, in turns."""
    device, one = divided.device, divided.one
    one_ms, failed = 0.0, ""
    if one is not None:
        try:
            call(one)
            one_ms = _call_ms(lambda: call(one), device)
        except torch.OutOfMemoryError as error:
            failed = str(error).splitlines()[0]
    failed = told_by_first(failed)
    result.one_reason = result.one_reason or failed
    has_one = told_by_first(one is not None and not failed)
    both_ms = max(all_told(_together_ms(lambda: call(divided.own), device) + one_ms))
    count = int(timing.seconds * 1e3 / max(both_ms, 1e-3))
    count = min(max(count, timing.min_samples), timing.max_samples)
    mine: list[float] = []
    for _ in range(count):
        if has_one:
            if one is not None:
                result.one_ms.append(_call_ms(lambda: call(one), device))
            dist.barrier()
        mine.append(_together_ms(lambda: call(divided.own), device))
    result.ranks_ms = all_told(mine)
    result.samples_ms = [max(each) for each in zip(*result.ranks_ms, strict=True)]


def _together_ms(call: Callable[[], Any], device: torch.device) -> float:
    """This rank's wall time of a call that all ranks begin at the same time."""
    _synchronize(device)
    dist.barrier()
    return _call_ms(call, device)


def _call_ms(call: Callable[[], Any], device: torch.device) -> float:
    _synchronize(device)
    begin = time.perf_counter()
    call()
    _synchronize(device)
    return (time.perf_counter() - begin) * 1e3


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _messages_ms(name: str, divided: Division) -> float:
    """The time of a call's messages without its kernels: the slowest rank's, the least of three."""
    times = [_together_ms(lambda: _only_messages(name, divided), divided.device) for _ in range(3)]
    return min(max(each) for each in zip(*all_told(times), strict=True))


def _only_messages(name: str, divided: Division) -> None:
    """Let the rows and the sums of an operation travel, and compute nothing."""
    S, own = divided.S, divided.own
    b_t, values = own.b_t, own.grad
    heads, width = b_t.shape[:-2], b_t.shape[-1]
    wide = DTYPES[b_t.dtype].accumulator

    def sums(rows: int) -> Tensor:
        return torch.empty(*heads, rows, width, dtype=wide, device=b_t.device)

    parts = {f"panel {s}": sums(p.pattern.shape[1]) for s, p in enumerate(S.block.panels)}
    for operation in OPERATIONS[name][1]:
        if operation == "spmm_transposed":
            S.block.gather_rows(own.a)
            S.block.gather_values(values)
            reduce_panels(S.block, S.way, S.ring_sizes, lambda _, label: parts[label])
            continue
        for _ in panels_of(S.block, S.way, b_t, S.ring_sizes):
            pass
        if operation == "sddmm":
            S.block.gather_rows(own.a)
            S.block.scatter_values(values.new_empty((*values.shape[:-1], S.block.nnz)))
        else:
            S.block.gather_values(values)
            S.block.scatter_rows(sums(S.block.rows))


def _predicted_ms(name: str, divided: Division) -> float:
    """The time of a call's messages by the formulas."""
    S, b_t = divided.S, divided.own.b_t
    heads = b_t.shape[0] if b_t.dim() == 3 else 1
    sum_item = DTYPES[b_t.dtype].accumulator.itemsize
    item = b_t.dtype.itemsize
    link = link_of(S.grid, divided.device)
    return (
        sum(
            predicted_us(
                S.counts,
                S.way,
                Request(op, b_t.shape[-1], heads, item, sum_item, item, heads),
                link,
            )
            for op in OPERATIONS[name][1]
        )
        / 1e3
    )
