"""Decides whether a call may read its tensors' memory directly or must go to the torch operator.

The direct way costs some microseconds less. It is open to plain tensors in plain eager execution
only. Everything that observes or changes what operators do (torch.compile, export, make_fx, jit
tracing, torch.func, dispatch and function modes, forward-mode AD, autocast, tensor subclasses)
must see `torch.ops.sddmm.sddmm`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _is_any_autocast_enabled  # bound here, as every call asks

from sddmm.cupy_arrays import to_tensor
from sddmm.operands import identity
from sddmm.ops.dispatch import is_intercepted, is_subclass
from sddmm.sparse.pattern import SparsePattern

# Returns the callback by which torch.compile compiles each Python frame; None or False where it
# compiles none.
dynamo_callback: Callable[[], Any] = getattr(
    torch._C._dynamo.eval_frame, "get_eval_frame_callback", type(None)
)

# What S may be in a graph of torch.compile, which takes no sparse tensors.
TRACEABLE = (SparsePattern, tuple)


def is_plain(a: Any, b: Any) -> bool:
    """Whether torch runs eagerly, and no operand is a tensor of a subclass."""
    if is_intercepted() or _is_any_autocast_enabled():
        return False
    return not (is_subclass(a) or is_subclass(b))


def needs_operator(S: Any, to_output: Any) -> bool:
    """Whether a call that is not plain must go to the operator; to_output converts its result.

    Autocast alone does not reach numpy and CuPy operands and scipy or cupyx matrices, which hold
    no bfloat16: they are computed as they are.
    """
    if is_intercepted():
        return True
    package = type(S).__module__.partition(".")[0]
    return to_output in (identity, to_tensor) and package not in ("scipy", "cupyx")
