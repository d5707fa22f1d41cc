"""A GEMM case: two pairs of operands on the GPU, and the output that every method fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.gemm.config import GemmConfig


@dataclass(frozen=True)
class Case:
    """C (m, n) = a (m, k) b (k, n), b stored as its rows of k or of n.

    a, b: random normal. integer_a, integer_b: -1, 0 and 1, whose sums over ten thousand products
    are exact even in halves. out: what a method writes.
    """

    config: GemmConfig
    a: Tensor
    b: Tensor
    integer_a: Tensor
    integer_b: Tensor
    out: Tensor


def make_case(config: GemmConfig, device: str = "cuda") -> Case:
    """Draw the operands on a device from the seed of the configuration."""
    m, n, _ = config.sizes
    a, b = _draw(config, device, torch.randn)
    integer_a, integer_b = _draw(config, device, _small_integers)
    out = torch.empty(m, n, dtype=a.dtype, device=device)
    return Case(config, a, b, integer_a, integer_b, out)


def _draw(config: GemmConfig, device: str, make: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    m, n, k = config.sizes
    options = {"generator": torch.Generator(device).manual_seed(config.seed), "device": device}
    dtype = getattr(torch, config.dtype)
    a = make(m, k, **options).to(dtype)
    if config.b_rows == "n":
        return a, make(n, k, **options).to(dtype).T
    return a, make(k, n, **options).to(dtype)


def _small_integers(rows: int, cols: int, **options: object) -> Tensor:
    return torch.randint(-1, 2, (rows, cols), **options)  # type: ignore[call-overload, no-any-return]
