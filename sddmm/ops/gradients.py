"""Autograd for the torch operators: which calls it follows, and which derivatives it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sddmm.operands import has_tangent, needs_grad
from sddmm.ops.autocast import without_autocast
from sddmm.ops.routing import is_direct
from sddmm.ops.used_patterns import holder_of, used_patterns

Backward = Callable[..., tuple["Tensor | None", ...]]
Compute = Callable[..., Any]
"""Returns a tensor, or a tuple of them."""


class Saved(NamedTuple):
    """What a backward knows of its forward, as of torch's `ctx`: the saved tensors, for which
    inputs gradients are asked, and the arguments that are no tensors."""

    saved_tensors: list[Any]
    needs_input_grad: tuple[bool, ...]
    options: dict[str, Any]


def autograd_kernel(
    op: Any, compute: Compute, backward: Backward, saves_output: bool = False
) -> Compute:
    """The kernel that runs `op` where autograd records it; `backward` computes the gradients.

    compute: what runs at last, below autograd and all that observes operators. saves_output:
    whether `backward` reads the result in place of the last input. Where the results are several,
    it reads all of them after the inputs, and the gradient of one that has none is None.

    torch.library.register_autograd would do the same, but it drops the tangents of forward mode.
    """
    defaults = {
        argument.name: argument.default_value
        for argument in op._schema.arguments
        if argument.kwarg_only and argument.has_default_value()
    }

    input_count = sum(not argument.kwarg_only for argument in op._schema.arguments)

    def forward(ctx: Any, *arguments: Any) -> Any:
        *inputs, options = arguments
        with used_patterns() as patterns:
            output = below(inputs, options)
        if isinstance(output, tuple):
            saved = *inputs, *output
            ctx.set_materialize_grads(False)
        else:
            saved = *inputs[:-1], output if saves_output else inputs[-1]
        ctx.save_for_backward(*saved, holder_of(patterns))
        ctx.options = options
        return output

    def backward_without_autocast(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *saved, _ = ctx.saved_tensors  # the last holds the pattern
        with without_autocast():
            return *backward(Saved(saved, ctx.needs_input_grad, ctx.options), *grads), None

    def below(inputs: Any, options: dict[str, Any]) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            # To dispatch again takes the host as long as the computation's own part.
            output: Any = (compute if is_direct(inputs) else op)(*inputs, **options)
        return output

    methods = {
        "forward": staticmethod(forward),
        "backward": staticmethod(backward_without_autocast),
    }
    name = op._schema.name
    function: Any = type(name.replace("::", "_"), (torch.autograd.Function,), methods)

    def kernel(*inputs: Any, **options: Any) -> Any:
        inputs += (None,) * (input_count - len(inputs))  # torch leaves defaults out
        _refuse_tangents(name, inputs)
        if needs_grad(*(x for x in inputs if isinstance(x, Tensor))):
            _refuse_transforms(name)
            result: Any = function.apply(*inputs, {**defaults, **options})
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
