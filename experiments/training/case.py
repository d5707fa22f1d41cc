"""A case of a training step: the operands of an SDDMM, and the gradient of its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from experiments.sddmm import case as sddmm_case
from experiments.sddmm.config import Config
from experiments.spmm.case import OnSampled, random_weights


class Step(NamedTuple):
    """The results of a step: the values ([h,] nnz), and the gradients of a and of b^T."""

    values: Tensor
    grad_a: Tensor
    grad_b_t: Tensor


@dataclass(frozen=True)
class Case(OnSampled):
    """The values of an SDDMM, and the gradients of a and b^T for the gradient `grad` of the values.

    grad: ([h,] nnz) of the operands' dtype, random normal.
    """

    grad: Tensor

    def leaves(self) -> tuple[Tensor, Tensor]:
        """a and b^T, which take gradients."""
        a, b_t = self.sampled.a, self.sampled.b.mT
        return a.detach().requires_grad_(), b_t.detach().requires_grad_()


def make_case(name: str, config: Config, identity: Mapping[str, Any] | None = None) -> Case:
    """Load or generate the matrix, and draw the operands and the gradient."""
    sampled = sddmm_case.make_case(name, config, identity)
    return Case(sampled, random_weights(sampled))
