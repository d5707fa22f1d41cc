"""The gradients of the torch operators, each made of the operators themselves.

    P = alpha * v * (A B)|S      dA = W B^T     dB = W^T A     dv = alpha * g * (A B)|S

with g the gradient of P and W = alpha * v * g placed at S's nonzeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sddmm.dtypes import common_accumulator
from sddmm.operands import differentiates, has_tangent
from sddmm.ops.autocast import without_autocast

Backward = Callable[[Any, Tensor], tuple["Tensor | None", ...]]


def autograd_kernel(op: Any, backward: Backward) -> Callable[..., Tensor]:
    """What runs `op` where autograd may be asked for gradients, which `backward` computes.

    torch.library.register_autograd would do, but that it drops the tangents of forward-mode AD.
    """
    defaults = {
        argument.name: argument.default_value
        for argument in op._schema.arguments
        if argument.kwarg_only and argument.has_default_value()
    }

    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *inputs, options = arguments
        ctx.save_for_backward(*inputs)
        ctx.options = options
        return below(inputs, options)

    def backward_without_autocast(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with without_autocast():
            return *backward(ctx, grad), None

    def below(inputs: Any, options: dict[str, Any]) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            output: Tensor = op(*inputs, **options)
        return output

    methods = {
        "forward": staticmethod(forward),
        "backward": staticmethod(backward_without_autocast),
    }
    name = op._schema.name
    function: Any = type(name.replace("::", "_"), (torch.autograd.Function,), methods)

    def kernel(*inputs: Any, **options: Any) -> Tensor:
        _refuse_tangents(name, inputs)
        if differentiates(*(x for x in inputs if isinstance(x, Tensor))):
            _refuse_transforms(name)
            result: Tensor = function.apply(*inputs, {**defaults, **options})
            return result
        return below(inputs, options)

    return kernel


def _refuse_tangents(name: str, inputs: tuple[Any, ...]) -> None:
    for x in inputs if forward_ad._current_level >= 0 else ():
        if isinstance(x, Tensor) and has_tangent(x):
            raise NotImplementedError(
                f"{name} has no forward-mode derivative (torch.autograd.forward_ad, "
                f"torch.func.jvp, jacfwd, hessian); use reverse mode"
            )


def _refuse_transforms(name: str) -> None:
    if torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            f"{name} cannot be differentiated by torch.func (grad, vjp, jacrev, hessian); "
            f"use torch.autograd: requires_grad and backward, or torch.autograd.grad"
        )


def sddmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, cols, a, b, values = ctx.saved_tensors
    options = ctx.options
    place = {"m": a.shape[-2], "n": b.shape[-1], "compressed": options["compressed"]}
    wide = common_accumulator(a.dtype, grad.dtype)
    grad_a = grad_b = grad_values = None
    if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
        weights = grad
        # A half type may not hold the scaled gradient, though it holds the product's.
        if options["alpha"] != 1 or values is not None:
            weights = grad.to(wide) * options["alpha"]
        if values is not None:
            weights = weights * values
        if ctx.needs_input_grad[2]:
            grad_a = torch.ops.sddmm.spmm(rows, cols, weights, b.mT, **place)
        if ctx.needs_input_grad[3]:
            grad_b = torch.ops.sddmm.spmm(rows, cols, weights, a, transpose=True, **place).mT
    if ctx.needs_input_grad[4]:
        again = {**options, "out_dtype": wide, "kernel_name": None}
        products = torch.ops.sddmm.sddmm(rows, cols, a, b, None, **again) * grad
        grad_values = (products.sum(0) if a.dim() == 3 else products).to(values.dtype)
    return None, None, grad_a, grad_b, grad_values


def spmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, cols, values, dense = ctx.saved_tensors
    options = ctx.options
    grad_values = grad_dense = None
    if ctx.needs_input_grad[2]:
        a, b = (dense, grad) if options["transpose"] else (grad, dense)
        grad_values = torch.ops.sddmm.sddmm(
            rows, cols, a, b.mT, None, compressed=options["compressed"], out_dtype=values.dtype
        )
    if ctx.needs_input_grad[3]:
        flipped = {**options, "transpose": not options["transpose"]}
        grad_dense = torch.ops.sddmm.spmm(rows, cols, values, grad, **flipped)
    return None, None, grad_values, grad_dense
