"""The definition of an operator, and its registration with torch.

The modules of this folder that bear an operator's name define the function that callers use, the
checks of its arguments, its gradient, and an `Operator` that is registered here. Autograd,
autocast, fake tensors and the look-up of patterns are the same for all operators.

The torch operators take index tensors instead of sparse tensors, so that autograd, autocast, fake
tensors and torch.compile see plain operators. Arguments that all of them share:

rows: crow_indices (m + 1,) if `compressed`, else row_indices (nnz,). cols: (nnz,).
blocksize: with `compressed`, the size of the blocks whose indices rows and cols are; else None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sddmm.cache import CACHE
from sddmm.dtypes import DTYPES, PRECISIONS
from sddmm.ops.autocast import DEVICES, autocast_kernel
from sddmm.ops.gradients import Backward, Compute, autograd_kernel
from sddmm.ops.routing import OPERATORS as OPERATORS
from sddmm.ops.used_patterns import note_used
from sddmm.sparse.pattern import SparsePattern

_LIBRARY = torch.library.Library("sddmm", "DEF")


@dataclass(frozen=True)
class Operator:
    """One operator of `torch.ops.sddmm`, with one result or a tuple of them.

    schema: its name, arguments and result, as torch.library writes them. compute: returns the
    result for tensors with data, and refuses arguments that do not fit. fake: returns an empty
    tensor like the result, from shapes and dtypes alone. backward: returns the gradients of the
    inputs from the saved inputs and options (`gradients.py`) and the gradient of the result.
    reference: returns the result with every sum accumulated in float64. error_bound: returns the
    largest error that each element of the result may have, in float64. Both take the operator's
    arguments, and error_bound the reference's result before them. problem: the type that holds all
    that a choice of its kernels may depend on; None while no kernel of this package computes it.
    saves_output: whether `backward` reads the result in place of the last input, which is then not
    kept. is_autocast: whether autocast casts its floating inputs.
    """

    schema: str
    compute: Compute
    fake: Compute
    backward: Backward
    reference: Compute
    error_bound: Compute
    problem: type | None = None
    saves_output: bool = False
    is_autocast: bool = True

    @property
    def name(self) -> str:
        return self.schema.partition("(")[0]


def register(operator: Operator) -> None:
    """Make the operator `torch.ops.sddmm.NAME`: differentiable, cast by autocast, traceable."""
    name = operator.name
    _LIBRARY.define(operator.schema)
    op = getattr(torch.ops.sddmm, name).default
    _LIBRARY.impl(name, operator.compute, "CompositeExplicitAutograd")
    kernel = autograd_kernel(op, operator.compute, operator.backward, operator.saves_output)
    _LIBRARY.impl(name, kernel, "Autograd")
    torch.library.register_fake(f"sddmm::{name}", operator.fake, lib=_LIBRARY)
    for device, key in DEVICES.items() if operator.is_autocast else ():
        _LIBRARY.impl(name, autocast_kernel(op, device), key)
    OPERATORS[name] = operator


def pattern_of(
    rows: Tensor,
    cols: Tensor,
    m: int,
    n: int,
    compressed: bool,
    blocksize: Sequence[int] | None = None,
) -> SparsePattern:
    """The cached pattern with the index tensors that a torch operator received."""
    pattern = _pattern_of(rows, cols, m, n, compressed, blocksize)
    note_used(pattern)
    return pattern


def _pattern_of(
    rows: Tensor,
    cols: Tensor,
    m: int,
    n: int,
    compressed: bool,
    blocksize: Sequence[int] | None,
) -> SparsePattern:
    if blocksize is not None:
        if not compressed:
            raise ValueError("blocksize is of compressed rows and cols; got compressed=False")
        size: Any = tuple(blocksize)  # from_bsr checks it
        return CACHE.of_operator(SparsePattern.from_bsr(rows, cols, size, (m, n), copy=False))
    cached = CACHE.over_tensors(rows, cols, (m, n), compressed)
    if cached is not None:
        return cached
    make = SparsePattern.from_csr if compressed else SparsePattern.from_coo
    return CACHE.of_operator(make(rows, cols, (m, n), copy=False))


def tolerance(dtype: torch.dtype, k: int, *, precision: str = "ieee") -> float:
    """Relative error allowed to a dot product of length k, with respect to sum |a_i b_i|.

    The bound gamma_n = n u / (1 - n u) of any order of summation (Higham, Accuracy and Stability of
    Numerical Algorithms, section 3.1), u the unit roundoff of the accumulator: float64 for
    float64, else float32; n = k + 2 leaves room for alpha and S's value.
    """
    u = DTYPES[DTYPES[dtype].accumulator].unit_roundoff
    n = k + 2
    return n * u / (1 - n * u) + PRECISIONS[precision]


def rounded_bound(slack: Tensor, truth: Tensor, out_dtype: torch.dtype) -> Tensor:
    """The largest error of sums that are wrong by `slack` at most, once rounded to `out_dtype`."""
    rounding = DTYPES[out_dtype].unit_roundoff
    subnormal = torch.finfo(out_dtype).smallest_normal * rounding * 2
    bound: Tensor = slack + rounding * (truth.abs() + slack) + subnormal
    return bound


def magnitude(pattern: SparsePattern, a: Tensor, b: Tensor) -> Tensor:
    """|a_i| |b_j| of every nonzero of the pattern, as `sddmm.testing.magnitude` explains it."""
    a, b = _without_subnormal_halves(a), _without_subnormal_halves(b)
    row_norms = torch.linalg.vector_norm(a, dim=-1, dtype=torch.float64)
    column_norms = torch.linalg.vector_norm(b, dim=-2, dtype=torch.float64)
    product: Tensor = row_norms[..., pattern.row_ids] * column_norms[..., pattern.col_ids]
    return product


def _without_subnormal_halves(x: Tensor) -> Tensor:
    """Magnitudes of x in which subnormal numbers of a half type are its smallest normal number.

    A tensor core aligns the products that it adds by the exponents of their factors, which it does
    not normalize: seen on an H200, where float16 products keep 25 bits below those exponents.
    """
    if not DTYPES[x.dtype].is_half:
        return x
    size = x.abs()
    return torch.where(size == 0, size, size.clamp(min=torch.finfo(x.dtype).smallest_normal))
