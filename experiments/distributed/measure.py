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
from torch.distributed.device_mesh import init_device_mesh

from experiments.bench.config import Timing
from experiments.bench.environment import environment
from experiments.bench.errors import ExperimentError
from experiments.distributed.case import Case
from experiments.distributed.messages import messages_of, requests
from experiments.distributed.operations import OPERATIONS, Measured, Operands
from experiments.distributed.ranks import all_told, engine, told_by_first
from experiments.distributed.record import CALLS, Record
from experiments.distributed.verify import verify
from sddmm.distributed import DistributedPattern, record
from sddmm.distributed.pattern import link_of
from sddmm.distributed.volumes import predicted_us, received_bytes

_SEQUENCES = 3  # of calls that follow each other


class Division(NamedTuple):
    """A case and this rank's part of its matrix."""

    case: Case
    S: DistributedPattern
    device: torch.device


def divide(case: Case, way: str, replicas: int, device: torch.device) -> Division:
    """Cut the case's matrix by nonzeros, and its columns evenly; every rank takes its rows."""
    size, rank = dist.get_world_size(), dist.get_rank()
    if size % replicas:
        raise ExperimentError(f"replicas must divide the {size} ranks, got {replicas}")
    mesh = init_device_mesh(device.type, (size // replicas, replicas)) if replicas > 1 else None
    crow, cols = case.crow, case.pattern.col_indices

    def make(begin: int, end: int) -> tuple[Any, Any]:
        own = crow[begin : end + 1]
        part = cols[int(own[0]) : int(own[-1])]
        return (own - own[0]).to(device), part

    n = case.pattern.shape[1]
    columns = n * (rank + 1) // size - n * rank // size
    chosen: Any = None if way == "auto" else way
    S = DistributedPattern.from_rows(
        make, case.pattern.shape, columns=columns, mesh=mesh, way=chosen
    )
    return Division(case, S, device)


def measure(name: str, divided: Division, timing: Timing, fields: dict[str, Any]) -> Record:
    """The record of an operation. fields: what names the case, its key and its session."""
    operation, (case, S, device) = OPERATIONS[name], divided
    result = Record(
        status="failed", environment=environment(device.type), engine=engine(device),
        method=name, ranks=S.grid.size, replicas=S.grid.replicas, way=S.way,
        rank_nnz=all_told(S.nnz), **fields,
    )  # fmt: skip
    own = operation.of_rank(case, S)
    operation.call(own)  # prepares, and opens the engine's connections
    before, written = S.grid.traffic.received, S.grid.traffic.written
    results = operation.call(own)
    result.received_bytes = all_told(S.grid.traffic.received - before)
    result.written_bytes = all_told(S.grid.traffic.written - written)
    per_call = requests(operation, own)
    result.formula_bytes = [
        sum(volumes) for volumes in zip(*(received_bytes(S.counts, S.way, r) for r in per_call),
                                        strict=True)
    ]  # fmt: skip
    verdicts = all_told(verify(name, case, own, results))
    del results
    result.checked = sum(v.checked for v in verdicts)
    result.wrong = sum(v.wrong for v in verdicts)
    result.error = max(v.error or 0.0 for v in verdicts)
    if result.wrong or result.received_bytes != result.formula_bytes:
        result.status = "wrong"
        result.reason = (
            f"{result.wrong} of {result.checked} values are outside the error bound"
            if result.wrong
            else "the ranks received other volumes than the formula says"
        )
        return result
    messages = messages_of(operation, own)
    times = [_together_ms(messages, device) for _ in range(4)][1:]
    result.messages_ms = min(max(each) for each in zip(*all_told(times), strict=True))
    result.predicted_messages_ms = (
        sum(predicted_us(S.counts, S.way, r, link_of(S.grid, device)) for r in per_call) / 1e3
    )
    _synchronize(device)
    dist.barrier()
    with record(device) as timeline:
        operation.call(own)
    result.spans = all_told([list(span) for span in timeline.spans()])
    one, result.one_reason = _one_process(operation, divided)
    _take_samples(operation, own, one, divided, timing, result)
    result.status = "ok"
    return result


def _one_process(operation: Measured, divided: Division) -> tuple[Operands | None, str]:
    """The operands of the whole on rank 0; None on others and where rank 0 has no room for them,
    which the second result says on every rank."""
    case, device = divided.case, divided.device
    one, reason = None, ""
    if dist.get_rank() == 0:
        reason = _no_room(operation.least_bytes(case), device)
        if not reason:
            try:
                one = operation.of_one(case)
                operation.call(one)
            except torch.OutOfMemoryError as error:
                one, reason = None, str(error).splitlines()[0]
                torch.cuda.empty_cache()
    return one, told_by_first(reason)


def _no_room(size: int, device: torch.device) -> str:
    """Why a device cannot hold so many bytes; empty if it can."""
    if device.type != "cuda":
        return ""
    total = torch.cuda.get_device_properties(device).total_memory
    if size <= total:
        return ""
    return f"it needs {size:,} bytes, and {torch.cuda.get_device_name(device)} has {total:,}"


def _take_samples(
    operation: Measured,
    own: Operands,
    one: Operands | None,
    divided: Division,
    timing: Timing,
    result: Record,
) -> None:
    """Fill in the samples of the ranks and of one process, in turns: of single calls, which all
    begin at the same time, and of several that follow each other."""
    device, has_one = divided.device, not result.one_reason
    one_ms = 0.0 if one is None else _call_ms(lambda: operation.call(one), device)
    both_ms = max(all_told(_together_ms(lambda: operation.call(own), device) + one_ms))
    count = int(timing.seconds * 1e3 / max(both_ms, 1e-3))
    count = min(max(count, timing.min_samples), timing.max_samples)
    mine: list[float] = []
    for _ in range(count):
        if one is not None:
            result.one_ms.append(_call_ms(lambda: operation.call(one), device))
        if has_one:
            dist.barrier()
        mine.append(_together_ms(lambda: operation.call(own), device))
    result.ranks_ms = all_told(mine)
    result.samples_ms = [max(each) for each in zip(*result.ranks_ms, strict=True)]
    mine = []
    for _ in range(_SEQUENCES):
        if one is not None:
            all_ms = _call_ms(lambda: _repeat(operation, one), device)
            result.one_back_to_back_ms.append(all_ms / CALLS)
        if has_one:
            dist.barrier()
        mine.append(_together_ms(lambda: _repeat(operation, own), device) / CALLS)
    result.back_to_back_ms = [max(each) for each in zip(*all_told(mine), strict=True)]


def _repeat(operation: Measured, operands: Operands) -> None:
    for _ in range(CALLS):
        operation.call(operands)


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
