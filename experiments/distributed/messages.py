"""The messages of an operation without its kernels: what they are, and a call that sends them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from experiments.distributed.operations import Measured, Operands
from sddmm.distributed import DistributedPattern
from sddmm.distributed.blocks import Panel, is_sliced
from sddmm.distributed.slices import Slice, add_up, gathered, slices_of
from sddmm.distributed.travel import exchange_panels, panels_of, reduce_panels
from sddmm.distributed.volumes import Operation, Request
from sddmm.dtypes import DTYPES


def requests(operation: Measured, own: Operands) -> list[Request]:
    """What the messages of a call move, by the formulas of `sddmm.distributed.volumes`."""
    b_t = own["b_t"]
    heads = b_t.shape[0] if b_t.dim() == 3 else 1
    width, item = b_t.shape[-1], b_t.dtype.itemsize
    wide = DTYPES[b_t.dtype].accumulator.itemsize
    return [
        Request(what, width, heads, item, wide, item, heads, width if "attention" in what else 0)
        for what in operation.messages
    ]


def messages_of(operation: Measured, own: Operands) -> Callable[[], None]:
    """A call that lets the rows and the sums of an operation travel, and computes nothing."""
    calls = [_MESSAGES[what](own) for what in operation.messages]

    def send() -> None:
        for call in calls:
            call()

    return send


def _of_sddmm(own: Operands) -> Callable[[], None]:
    S, a, b_t = _division(own), own["a"], own["b_t"]
    values = a.new_empty((*a.shape[:-2], S.block.nnz))

    def send() -> None:
        S.block.gather_rows(a)
        _send_panels(S, b_t)
        S.block.scatter_values(values)

    return send


def _of_spmm(own: Operands) -> Callable[[], None]:
    S, b_t, weights = _division(own), own["b_t"], own["weights"]
    sums = _sums(b_t, S.block.rows if S.grid.replicas > 1 else 0, b_t.shape[-1])

    def send() -> None:
        S.block.gather_values(weights)
        _send_slices(S, (b_t,)) if is_sliced(S.way) else _send_panels(S, b_t)
        if S.grid.replicas > 1:
            S.block.scatter_rows(sums)

    return send


def _of_transposed(own: Operands) -> Callable[[], None]:
    S, a, weights = _division(own), own["a"], own["weights"]
    part, wide = _panel_sums(S, a, a.shape[-1]), DTYPES[a.dtype].accumulator

    def send() -> None:
        S.block.gather_values(weights)
        if is_sliced(S.way):
            _send_sums_of_slices(S, S.block.gather_rows(a), wide)
            return
        S.block.gather_rows(a)
        reduce_panels(S.block, S.way, S.ring_sizes, lambda panel, _: part(panel))

    return send


def _of_attention(own: Operands) -> Callable[[], None]:
    S, q, k, v = _division(own), own["a"], own["b_t"], own["v"]
    both = _both(own)
    width = v.shape[-1] + 1
    merged = _sums(q, S.block.rows if S.grid.replicas > 1 else 0, width)

    def send() -> None:
        S.block.gather_rows(q)
        _send_slices(S, (k, v), True) if is_sliced(S.way) else _send_panels(S, both)
        if S.grid.replicas > 1:
            S.block.collect_rows(merged)

    return send


def _of_attention_backward(own: Operands) -> Callable[[], None]:
    S, q, k, v = _division(own), own["a"], own["b_t"], own["v"]
    both = _both(own)
    part = _panel_sums(S, both, both.shape[-1])
    has_replicas = S.grid.replicas > 1
    logarithms = _sums(q, q.shape[-2] if has_replicas else 0, 2)
    sums = _sums(q, S.block.rows if has_replicas else 0, q.shape[-1])

    def send() -> None:
        if has_replicas:
            for x in (q, q, q, logarithms):
                S.block.gather_rows(x)
        if is_sliced(S.way):
            _send_slices(S, (k, v), True)
            _send_sums_of_slices(S, both, both.dtype, True)
        else:
            exchange_panels(S.block, S.way, both, S.ring_sizes, lambda panel, *_: part(panel))
        if has_replicas:
            S.block.scatter_rows(sums)

    return send


_MESSAGES: dict[Operation, Callable[[Operands], Callable[[], None]]] = {
    "sddmm": _of_sddmm,
    "spmm": _of_spmm,
    "spmm_transposed": _of_transposed,
    "attention": _of_attention,
    "attention_backward": _of_attention_backward,
}


def _division(own: Operands) -> DistributedPattern:
    assert isinstance(own.S, DistributedPattern)
    return own.S


def _send_panels(S: DistributedPattern, x: Tensor) -> None:
    for _ in panels_of(S.block, S.way, x, S.ring_sizes):
        pass


def _both(own: Operands) -> Tensor:
    """The rows of K and V side by side."""
    return torch.cat([own["b_t"], own["v"]], dim=-1)


def _send_slices(S: DistributedPattern, own: tuple[Tensor, ...], is_whole: bool = False) -> None:
    """Let the slices of operands travel. is_whole: of an attention, whose columns are not cut."""
    cut = _cut(own[0], is_whole)
    for _ in gathered(S.block, len(cut), lambda j: tuple(cut[j].of(x) for x in own)):
        pass


def _send_sums_of_slices(
    S: DistributedPattern, x: Tensor, dtype: torch.dtype, is_whole: bool = False
) -> None:
    rows, cut = sum(S.block.widths), _cut(x, is_whole)
    widths = [at.of(x).shape[-1] for at in cut]
    parts = ((j, (x.new_zeros((rows, width), dtype=dtype),)) for j, width in enumerate(widths))
    own = S.block.widths[S.grid.ring]
    add_up(S.block, parts, lambda j: (x.new_empty((own, widths[j])),))


def _cut(x: Tensor, is_whole: bool) -> list[Slice]:
    return [Slice(None, slice(None))] if is_whole and x.dim() == 2 else slices_of(x)


def _sums(x: Tensor, rows: int, width: int) -> Tensor:
    """Room for sums of rows like those of x."""
    wide = DTYPES[x.dtype].accumulator
    return torch.zeros(*x.shape[:-2], rows, width, dtype=wide, device=x.device)


def _panel_sums(S: DistributedPattern, x: Tensor, width: int) -> Callable[[Panel], Tensor]:
    """Room for the sums of each panel, by the panel; one memory for all."""
    rows = [panel.pattern.shape[1] for panel in S.block.panels]
    room = _sums(x, max(rows, default=0), width)
    flat = room.view(-1)

    def part(panel: Panel) -> Tensor:
        shape = (*x.shape[:-2], panel.pattern.shape[1], width)
        return flat[: torch.Size(shape).numel()].view(shape)

    return part
