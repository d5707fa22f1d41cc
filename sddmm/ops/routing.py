"""Decides whether a call may read its tensors' memory directly or must go to the torch operator.

The direct way costs some microseconds less. It is open to plain tensors in plain eager execution
only. Everything that observes or changes what operators do (torch.compile, export, make_fx, jit
tracing, torch.func, dispatch and function modes, forward-mode AD, autocast, tensor subclasses)
must see `torch.ops.sddmm.sddmm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import (  # bound here, as every call asks
    _are_functorch_transforms_active,
    _dispatch_tls_is_dispatch_key_included,
    _get_tracing_state,
    _is_any_autocast_enabled,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch._C._functorch import is_legacy_batchedtensor  # those of is_grads_batched
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

if TYPE_CHECKING:
    from sddmm.ops.base import Operator

OPERATORS: dict[str, Operator] = {}
"""The operators by their names; `ops/base.py` registers them."""

ELSEWHERE: dict[type, Any] = {}
"""Types of S whose calls another module computes, with functions of the same names and arguments;
`sddmm/distributed` registers its own here when it is imported."""

# Returns the callback by which torch.compile compiles each Python frame; None or False where it
# compiles none.
dynamo_callback: Callable[[], Any] = getattr(
    torch._C._dynamo.eval_frame, "get_eval_frame_callback", type(None)
)

_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
_PLAIN_TYPES = frozenset({Tensor, Parameter})


def call(name: str, *inputs: Tensor | None, **options: Any) -> Tensor:
    """torch.ops.sddmm.NAME, as a backward calls it: straight to its computation, which takes the
    host half the time, unless the call is differentiated or observed."""
    if torch.is_grad_enabled() or not is_direct(inputs):
        result: Tensor = getattr(torch.ops.sddmm, name)(*inputs, **options)
        return result
    direct: Tensor = OPERATORS[name].compute(*inputs, **options)
    return direct


def is_plain(*operands: Any) -> bool:
    """Whether torch runs eagerly, and no operand is a tensor of a subclass."""
    if is_intercepted() or _is_any_autocast_enabled():
        return False
    for x in operands:  # noqa: SIM110 - a loop is quicker than all(), and every call runs it
        if type(x) not in _PLAIN_TYPES and isinstance(x, Tensor):
            return False
    return True


def is_direct(inputs: Sequence[Any]) -> bool:
    """Whether an operator on these inputs ends in its computation, and nothing observes it."""
    for x in inputs:
        if isinstance(x, Tensor) and (
            type(x) not in _PLAIN_TYPES or x.is_meta or is_legacy_batchedtensor(x)
        ):
            return False
    return not is_intercepted()


def is_subclass(x: Any) -> bool:
    """Whether x is a tensor of a class that may hold no data of its own, as a FakeTensor."""
    return type(x) not in _PLAIN_TYPES and isinstance(x, Tensor)


def is_intercepted() -> bool:
    """Whether something other than autocast compiles, traces, transforms or observes operators."""
    return (
        is_dynamo_compiling()
        or _len_torch_dispatch_stack() > 0
        or _are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or _get_tracing_state() is not None
        or _dispatch_tls_is_dispatch_key_included(_PRE_DISPATCH)
        or (_len_torch_function_stack() > 0 and _has_function_mode())
    )


def _has_function_mode() -> bool:
    """Whether a mode other than the default device's intercepts torch functions."""
    return any(type(mode) is not DeviceContext for mode in _get_current_function_mode_stack())
