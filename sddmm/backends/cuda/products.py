"""Running products W X: what a kernel of spmm prepares, and the executor that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sddmm.backends.base import Addend, joined, resolve_lazy_view
from sddmm.backends.cuda.executor import PlansExecutor

Run = Callable[..., None]


class ProductPlan(NamedTuple):
    """One launch, or several, that compute a product out = alpha * W X; prepared for a pattern.

    run(values, factors, dense, alpha, out[, beyond[, addend]]): launches on torch's current stream
    and keeps nothing of its tensors. The weight of nonzero i in head h is values[h, i] *
    factors[i], in the order of the pattern; values are ([h,] nnz) with last stride 1 and any head
    stride, and factors (nnz,), contiguous, or None. out is contiguous ([h,] m, k), and all of it is
    written.
    accepts(dense): whether `run` can read a dense operand, ([h,] n, k), as it is.
    to_accepted(dense): returns a copy that it can read. reads_beyond: whether `run` takes
    `beyond`, the last rows of X, (rows, k), where dense has the first ones alone. takes_addend:
    whether it takes `addend`, see `AddingProduct`.
    """

    run: Run
    accepts: Callable[[Tensor], bool]
    to_accepted: Callable[[Tensor], Tensor] = Tensor.contiguous
    reads_beyond: bool = False
    takes_addend: bool = False


class ProductExecutor(PlansExecutor[ProductPlan]):
    """Runs the plans of a product, one after the other. It takes any strides of all operands."""

    @property
    def takes_addend(self) -> bool:
        return len(self._plans) == 1 and self._plans[0].takes_addend

    def __call__(
        self, values: Tensor, factors: Tensor | None, dense: Tensor, alpha: float, out: Tensor,
        beyond: Tensor | None = None,
    ) -> None:  # fmt: skip
        self._run(values, factors, dense, alpha, out, beyond, None)

    def add(
        self, values: Tensor, dense: Tensor, alpha: float, addend: Addend, out: Tensor,
        beyond: Tensor | None = None,
    ) -> None:  # fmt: skip
        self._run(values, None, dense, alpha, out, beyond, addend)

    def _run(
        self, values: Tensor, factors: Tensor | None, dense: Tensor, alpha: float, out: Tensor,
        beyond: Tensor | None, addend: Addend | None,
    ) -> None:  # fmt: skip
        if self._device_index != self._current_device():
            with torch.cuda.device(self._device_index):  # the driver launches in this context
                return self._run(values, factors, dense, alpha, out, beyond, addend)
        if values.is_neg() or values._is_zerotensor():  # as most are not, they cost no call
            values = resolve_lazy_view(values)
        if values.stride(-1) != 1:
            values = _with_adjacent_values(values)
        if dense.is_neg() or dense._is_zerotensor():
            dense = resolve_lazy_view(dense)
        if factors is not None:
            factors = resolve_lazy_view(factors).contiguous()
        if beyond is not None:
            beyond = resolve_lazy_view(beyond)
            if not self._reads(dense, beyond):
                dense, beyond = joined(dense, beyond), None
        more: tuple[Any, ...] = () if beyond is None else (beyond,)
        if addend is not None:
            more = beyond, addend
        for plan in self._plans:
            accepted = dense if plan.accepts(dense) else plan.to_accepted(dense)
            plan.run(values, factors, accepted, alpha, out, *more)
        return None

    def _reads(self, dense: Tensor, beyond: Tensor) -> bool:
        """Whether all plans read rows from both tensors as they are."""
        return dense.dim() == 2 and all(
            plan.reads_beyond and plan.accepts(dense) and plan.accepts(beyond)
            for plan in self._plans
        )


def _with_adjacent_values(values: Tensor) -> Tensor:
    """The values, or a copy in which those of one head are adjacent; heads that share their memory,
    as in the gradient of a sum, share that of the copy."""
    if values.shape[-1] <= 1:
        return values
    if values.dim() == 2 and values.stride(0) == 0:
        return values[:1].contiguous().expand_as(values)
    return values.contiguous()
