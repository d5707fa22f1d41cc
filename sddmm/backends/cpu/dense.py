"""Dense operands as the arrays that the CPU kernels read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sddmm.backends.base import resolve_lazy_view


def contiguous_array(x: Tensor, dtype: torch.dtype) -> Any:
    """The numbers of a tensor in the kernel's dtype, contiguous; a copy only where it needs one."""
    # Asking is quicker than a conversion that changes nothing.
    if x.requires_grad:
        x = x.detach()
    if x.dtype != dtype or not x.is_contiguous() or x.is_neg() or x._is_zerotensor():
        x = resolve_lazy_view(x).to(dtype).contiguous()
    return x.numpy()
