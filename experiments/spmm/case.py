"""A case of SpMM is an SDDMM case with weights, so that the yardstick has the same operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

import sddmm
from experiments.sddmm import case as sddmm_case
from experiments.sddmm.config import Config
from sddmm.sparse.views import CompressedView

Own = TypeVar("Own", bound="OnSampled")


@dataclass(frozen=True)
class OnSampled:
    """A case that is made of an SDDMM case, `sampled`, and has its sizes and names."""

    sampled: sddmm_case.Case

    @property
    def pattern(self) -> sddmm.SparsePattern:
        return self.sampled.pattern

    def with_unseen_indices(self: Own) -> Own:
        """The same case over new copies of the index arrays, for which nothing is cached."""
        return replace(self, sampled=self.sampled.with_unseen_indices())

    @property
    def m(self) -> int:
        return self.sampled.m

    @property
    def n(self) -> int:
        return self.sampled.n

    @property
    def k(self) -> int:
        return self.sampled.k

    @property
    def heads(self) -> int:
        return self.sampled.heads

    @property
    def nnz(self) -> int:
        return self.sampled.nnz

    @property
    def matrix(self) -> str:
        return self.sampled.matrix

    @property
    def definition(self) -> dict[str, Any]:
        return self.sampled.definition

    @property
    def dtype(self) -> str:
        return self.sampled.dtype

    @property
    def seed(self) -> int:
        return self.sampled.seed

    @property
    def device(self) -> str:
        return self.sampled.device

    @property
    def family(self) -> str:
        return self.sampled.family


@dataclass(frozen=True)
class Case(OnSampled):
    """The product W X, or W^T X with `transpose`: W has the pattern of `sampled` and the weights.

    sampled: an SDDMM of the same pattern, d and heads; X is its b^T, or its a with `transpose`.
    weights: ([heads,] nnz) of the dtype of X, random normal. m, n: of W, with `transpose` too. k:
    the columns of X, d.
    """

    weights: Tensor
    transpose: bool

    @property
    def dense(self) -> Tensor:
        """X, ([heads,] n, d), or ([heads,] m, d) with `transpose`; contiguous."""
        return self.sampled.a if self.transpose else self.sampled.b.mT

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (*self.dense.shape[:-2], self.n if self.transpose else self.m, self.k)

    @property
    def view(self) -> CompressedView:
        """The matrix that multiplies X as CSR: W, or its transpose."""
        return self.pattern.by_column if self.transpose else self.pattern.by_row

    @property
    def weights_by_view(self) -> Tensor:
        """The weights in the order of `view`, ([heads,] nnz), contiguous."""
        perm = self.view.perm
        return self.weights if perm is None else self.weights[..., perm].contiguous()

    def heads_of(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """These tensors head by head; as they are where there are no heads."""
        return [tensors] if self.dense.dim() == 2 else list(zip(*tensors, strict=True))


def make_case(name: str, config: Config, identity: Mapping[str, Any] | None = None) -> Case:
    """Load or generate the matrix, and draw X and the weights."""
    sampled = sddmm_case.make_case(name, config, identity)
    return Case(sampled, random_weights(sampled), config.transpose)


def random_weights(case: sddmm_case.Case, dtype: torch.dtype | None = None) -> Tensor:
    """One random normal weight for each nonzero and head, of the dtype of the operands if None."""
    generator = torch.Generator(case.device).manual_seed(case.seed + 1)
    shape = (*case.a.shape[:-2], case.nnz)
    weights = torch.randn(*shape, generator=generator, device=case.device)
    return weights.to(case.a.dtype if dtype is None else dtype)
