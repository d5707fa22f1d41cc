"""Autocast: the torch operators cast their floating operands as torch.mm does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

DEVICES = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)


def without_autocast() -> Any:
    """A context in which no operator is cast."""
    return torch._C._ExcludeDispatchKeyGuard(_KEYS)


def autocast_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype that an operand has where it is used: autocast leaves float64 as it is."""
    kind = device.type
    if kind in DEVICES and dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return dtype


def autocast_kernel(op: Any, device: str) -> Callable[..., Tensor]:
    """The kernel that runs `op` under autocast: it casts all floating operands but float64.

    torch.library.register_autocast knows one dtype, not the one that the user set, and takes no
    keyword arguments. A precision applies to float32 only, so a cast call has none.
    """

    def cast(x: Any, dtype: torch.dtype) -> Any:
        floating = isinstance(x, Tensor) and x.is_floating_point() and x.device.type == device
        return x.to(dtype) if floating and x.dtype != torch.float64 else x

    def kernel(*inputs: Any, **options: Any) -> Tensor:
        dtype = torch.get_autocast_dtype(device)
        with without_autocast():
            operands = [cast(x, dtype) for x in inputs]
            if any(new is not x for new, x in zip(operands, inputs, strict=True)):
                options.pop("precision", None)
            output: Tensor = op(*operands, **options)
        return output

    return kernel
