"""Calls torch's FlexAttention, compiled, on the block mask of S, where S is a mask of tiles.

experiments/attention/block_mask.py says how the mask is made. The kernel is compiled once for each
shape, without dynamic sizes; `compile_ms` is the time of that. On a CPU it is called uncompiled,
for tests: it has no backward there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from experiments.attention import block_mask
from experiments.attention.case import Case, batch_of_one, new_run, without_batch
from experiments.bench.memory import refuse_bytes
from experiments.bench.methods import Run

IS_PEER = True

_LEAST_COLUMNS = 16
# The blocks of the kernels where the mask's are smaller than theirs would be.
_SMALL = dict.fromkeys(
    (
        *("fwd_BLOCK_M", "fwd_BLOCK_N"),
        *("bwd_BLOCK_M1", "bwd_BLOCK_N1", "bwd_BLOCK_M2", "bwd_BLOCK_N2"),
    ),
    block_mask.SMALL_BLOCK,
)


class Compiled(NamedTuple):
    """FlexAttention for one kind of case, and the ms of its first call."""

    attend: Callable[..., Tensor]
    first_ms: list[float]


def refuses(case: Case) -> str | None:
    if (reason := block_mask.refuses(case)) is not None:
        return reason
    if not case.device.startswith("cuda"):
        if case.backward:
            return "FlexAttention has no backward on a CPU"
        return refuse_bytes(case.device, "the scores take", 8 * case.m * case.n * case.heads)
    if case.k < _LEAST_COLUMNS:
        return f"FlexAttention computes d of {_LEAST_COLUMNS} and more on a GPU"
    return None


def prepare(case: Case) -> Run:
    attend, first_ms = _compiled_for(case)
    mask = block_mask.block_mask(case)
    run = new_run(case, lambda q, k, v: attend(q, k, v, mask), batch_of_one, without_batch)
    begin = time.perf_counter()
    run()
    if case.device.startswith("cuda"):
        torch.cuda.synchronize()
    if not first_ms:
        first_ms.append((time.perf_counter() - begin) * 1e3)
    return run


def compile_ms(case: Case) -> float | None:
    """The first call of what the case is computed by; None where nothing is compiled."""
    if not case.device.startswith("cuda"):
        return None
    return next(iter(_compiled_for(case).first_ms), None)


def _call(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, options: Any = None) -> Tensor:
    out: Tensor = flex_attention(q, k, v, block_mask=mask, kernel_options=options)  # type: ignore[assignment]
    return out


# What was compiled for the case before, which is freed with its kernels when another is compiled.
_compiled: dict[object, Compiled] = {}


def _compiled_for(case: Case) -> Compiled:
    """FlexAttention compiled for the sizes and the rule of the case, when it is first called."""
    is_small = block_mask.block_side(case) == block_mask.SMALL_BLOCK
    key = (
        *(case.m, case.n, case.k, case.heads, case.dtype, case.backward, case.device),
        str(case.definition),
    )
    if key not in _compiled:
        _compiled.clear()
        options = dict(_SMALL) if is_small else None
        _compiled[key] = Compiled(_new_call(case, options), [])
    return _compiled[key]


def _new_call(case: Case, options: dict[str, int] | None) -> Callable[..., Tensor]:
    if not case.device.startswith("cuda"):
        return _call
    # torch counts what it compiles by the code of a function, and gives up after a few shapes: each
    # kind of case gets a code of its own.
    own = FunctionType(_call.__code__.replace(), globals(), "flex", (options,))
    compiled: Callable[..., Tensor] = torch.compile(own, dynamic=False, fullgraph=True)
    return compiled
