"""Running sparse attention: what its kernels prepare, and the executor that runs it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sddmm.backends.base import (
    AttentionGradients,
    AttentionOperands,
    joined,
    resolve_lazy_view,
)
from sddmm.backends.cuda.executor import PlansExecutor


class AttentionPlan(Protocol):
    """The launches that compute attention over one pattern, on torch's current stream.

    The arguments are those of `PreparedAttention`, in memory that kernels can read. reads_beyond:
    whether `AttentionOperands.beyond` may be there.
    """

    reads_beyond: bool

    def forward(self, operands: AttentionOperands, out: Tensor, lse: Tensor) -> None: ...

    def prepare_backward(self) -> None: ...

    def backward(
        self,
        operands: AttentionOperands,
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        grad_lse: Tensor | None,
        gradients: AttentionGradients,
    ) -> None: ...


class AttentionExecutor(PlansExecutor[AttentionPlan]):
    """Runs the plan of an attention, the only one, as each plan computes all of it."""

    def forward(self, operands: AttentionOperands, out: Tensor, lse: Tensor) -> None:
        if self._device_index != self._current_device():
            with torch.cuda.device(self._device_index):  # the driver launches in this context
                return self.forward(operands, out, lse)
        self._plans[0].forward(self._in_memory(operands), out, lse)
        return None

    def prepare_backward(self) -> None:
        if self._device_index != self._current_device():
            with torch.cuda.device(self._device_index):
                return self.prepare_backward()
        self._plans[0].prepare_backward()
        return None

    def backward(
        self,
        operands: AttentionOperands,
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        grad_lse: Tensor | None,
        gradients: AttentionGradients,
    ) -> None:
        if self._device_index != self._current_device():
            with torch.cuda.device(self._device_index):
                return self.backward(operands, out, lse, grad_out, grad_lse, gradients)
        grad_lse = None if grad_lse is None else resolve_lazy_view(grad_lse)
        grad_out = readable(grad_out)
        operands = self._in_memory(operands)
        self._plans[0].backward(operands, out, lse, grad_out, grad_lse, gradients)
        return None

    def _in_memory(self, operands: AttentionOperands) -> AttentionOperands:
        q, k, v, bias, scale, dropout_p, seed, beyond = operands
        if beyond is not None:
            # Kernels read two parts of one head, and count from the address of the first one.
            if self._plans[0].reads_beyond and k.shape[0] == 1 and k.shape[1]:
                beyond = readable(beyond[0]), readable(beyond[1])
            else:
                k, v, beyond = joined(k, beyond[0]), joined(v, beyond[1]), None
        if bias is not None:
            bias = resolve_lazy_view(bias)
        q, k, v = readable(q), readable(k), readable(v)
        return AttentionOperands(q, k, v, bias, scale, dropout_p, seed, beyond)


# The most bytes from row to row that kernels step over.
_MAX_PITCH_BYTES = 2**31 - 1


def readable(x: Tensor) -> Tensor:
    """A tensor (heads, rows, columns), or a copy in which rows are contiguous and near enough to
    each other for kernels to step from one to the next."""
    if x.is_neg() or x._is_zerotensor():  # as most are not, they cost no call
        x = resolve_lazy_view(x)
    row_stride, stride = x.stride()[-2:]
    is_contiguous = stride == 1 or x.shape[-1] <= 1
    is_near = 0 <= row_stride * x.element_size() <= _MAX_PITCH_BYTES
    return x if is_contiguous and is_near else x.contiguous()
