"""A case of attention is an SDDMM case with values, so that the yardstick has the same operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.bench.methods import Run
from experiments.sddmm import case as sddmm_case
from experiments.sddmm.config import Config
from experiments.spmm.case import OnSampled

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Step(NamedTuple):
    """The result, ([h,] m, d); of a training step also the gradients of q, k and v."""

    out: Tensor
    grad_q: Tensor | None = None
    grad_k: Tensor | None = None
    grad_v: Tensor | None = None


@dataclass(frozen=True)
class Case(OnSampled):
    """Attention softmax(q k^T / sqrt(d), at S) v, with `backward` the gradients too.

    sampled: an SDDMM of the same pattern, d and heads; q is its a, and k its b^T. v: ([h,] n, d);
    grad: the gradient of the result, ([h,] m, d). Both are random normal and of q's dtype.
    """

    v: Tensor
    grad: Tensor
    backward: bool

    @property
    def q(self) -> Tensor:
        return self.sampled.a

    @property
    def keys(self) -> Tensor:
        """k, ([h,] n, d), contiguous."""
        return self.sampled.b.mT

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.q, self.keys, self.v

    @property
    def scale(self) -> float:
        return self.k**-0.5

    @property
    def result_bytes(self) -> int:
        """What any training step must allocate: the result, three gradients, and a float32 of each
        row and head."""
        elements = 2 * self.q.numel() + 2 * self.v.numel()
        return elements * self.q.element_size() + 4 * self.m * self.heads


def make_case(name: str, config: Config, identity: Mapping[str, Any] | None = None) -> Case:
    """Load or generate the matrix, and draw the operands and the gradient."""
    sampled = sddmm_case.make_case(name, config, identity)
    generator = torch.Generator(sampled.device).manual_seed(sampled.seed + 1)
    v, grad = (
        torch.randn(like.shape, generator=generator, device=like.device).to(like.dtype)
        for like in (sampled.b.mT, sampled.a)
    )
    return Case(sampled, v, grad, config.backward)


def new_run(
    case: Case,
    attend: Attend,
    into: Callable[[Tensor], Tensor] = lambda x: x,
    back: Callable[[Tensor], Tensor] = lambda x: x,
) -> Run:
    """run() -> Step by a function of q, k and v, and by autograd where the case has a backward.

    into, back: from the case's ([h,] rows, d) to the layout of the function, before anything is
    timed, and back by a view.
    """
    inputs = [into(x).detach() for x in case.inputs]
    if not case.backward:
        return lambda: Step(back(attend(*inputs)))
    leaves = [x.requires_grad_() for x in inputs]
    grad = into(case.grad)

    def step() -> Step:
        out = attend(*leaves)
        gradients: Sequence[Tensor] = torch.autograd.grad(out, leaves, grad)
        return Step(back(out.detach()), *map(back, gradients))

    return step


def rows_first(x: Tensor) -> Tensor:
    """([h,] rows, d) as a contiguous (rows, h, d), the layout of graph libraries."""
    return (x.unsqueeze(0) if x.dim() == 2 else x).transpose(0, 1).contiguous()


def heads_first(x: Tensor) -> Tensor:
    """(rows, h, d) as a view ([h,] rows, d); one head has no dimension."""
    return x.squeeze(1) if x.shape[1] == 1 else x.transpose(0, 1)


def batch_of_one(x: Tensor) -> Tensor:
    """([h,] rows, d) as a view (1, h, rows, d), the layout of dense attention."""
    return x.view(1, -1, *x.shape[-2:])


def without_batch(x: Tensor) -> Tensor:
    """(1, h, rows, d) as a view ([h,] rows, d); one head has no dimension."""
    return x[0, 0] if x.shape[1] == 1 else x[0]
