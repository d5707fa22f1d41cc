"""Products of a pattern's matrix and a dense one: prepared once, kept with the pattern, and run."""

from __future__ import annotations

import torch
from torch import Tensor

from sddmm.backends.base import Addend, AddingProduct, PreparedProduct
from sddmm.backends.selection import select_product_backend
from sddmm.cache import CACHE
from sddmm.memory import new_memory
from sddmm.prepared import plans_of
from sddmm.problem import SpmmProblem
from sddmm.sparse.pattern import SparsePattern


def product(
    pattern: SparsePattern,
    values: Tensor,
    dense: Tensor,
    factors: Tensor | None = None,
    *,
    transpose: bool = False,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
    beyond: Tensor | None = None,
) -> Tensor:
    """A new tensor alpha * W X, ([heads,] m, d); with `transpose` alpha * W^T X, ([heads,] n, d).

    values: (nnz,) for all heads, or (heads, nnz); factors: (nnz,), which multiply them, or None.
    dense: X, ([heads,] n, d), or ([heads,] m, d) for the transpose. All of any strides, and of
    shapes that fit (`ops/spmm.py` checks them). out_dtype: dense's if None. What is prepared for
    the pattern is kept with it, so that further products with such operands prepare nothing.
    beyond: the last rows of X, where dense, without heads, has the first ones alone.
    """
    problem = product_problem(pattern, values, dense, factors, transpose, out_dtype)
    return product_of(problem, pattern, values, dense, factors, transpose, alpha, beyond)


def add_product(
    pattern: SparsePattern,
    values: Tensor,
    dense: Tensor,
    addend: Addend,
    out: Tensor,
    *,
    alpha: float = 1.0,
    beyond: Tensor | None = None,
) -> bool:
    """out[out_rows[i]] = sums[i] + row i of alpha * W X, rounded once, for every i.

    The operands are those of `product`, without heads; out: (rows, d), contiguous. False, and
    nothing is done, where no prepared kernel adds.
    """
    problem = product_problem(pattern, values, dense, None, False, out.dtype)
    run = find_or_prepare(pattern, problem) if problem.nnz and out.numel() else None
    if not isinstance(run, AddingProduct) or not run.takes_addend:
        return False
    run.add(values, dense, alpha, addend, out, beyond)
    return True


def product_of(
    problem: SpmmProblem,
    pattern: SparsePattern,
    values: Tensor,
    dense: Tensor,
    factors: Tensor | None,
    transpose: bool,
    alpha: float,
    beyond: Tensor | None = None,
) -> Tensor:
    """`product` of operands whose problem is known."""
    shape, device = problem.out_shape(), problem.device
    out = new_memory("a product of shape {shape}", shape, problem.out_dtype, device)
    if problem.nnz == 0 or out.numel() == 0:
        pattern.check()
        return out.zero_().mul_(alpha)
    run = find_or_prepare(pattern, problem, transpose)
    run(values, factors, dense, alpha, out, beyond)
    return out


def product_problem(
    pattern: SparsePattern,
    values: Tensor,
    dense: Tensor,
    factors: Tensor | None,
    transpose: bool,
    out_dtype: torch.dtype | None,
    is_lean: bool = False,
) -> SpmmProblem:
    """The problem of a product with these operands. is_lean: as of SpmmProblem; where heads have no
    weights of their own, all products are."""
    m, n = pattern.shape
    if transpose:
        m, n = n, m
    heads = dense.shape[0] if dense.dim() == 3 else None
    values_have_heads = values.dim() == 2
    return SpmmProblem(  # by position, as names cost a third of a microsecond at every call
        m, n, dense.shape[-1], pattern.nnz, dense.dtype, values.dtype,
        dense.dtype if out_dtype is None else out_dtype, pattern.index_dtype, heads,
        values_have_heads, factors is not None, pattern.device, "ieee",
        is_lean and values_have_heads,
    )  # fmt: skip


def find_or_prepare(
    pattern: SparsePattern, problem: SpmmProblem, transpose: bool = False
) -> PreparedProduct:
    """What computes the problem with a pattern, or with its transpose; prepared at its first use.

    It is prepared for many runs at once: all products with a pattern then have the same bits.
    RuntimeError while a CUDA graph is captured: preparing waits for the GPU.
    """

    def prepare() -> PreparedProduct:
        return select_product_backend(problem).prepare_product(pattern, problem, transpose)

    products, purpose = plans_of(pattern).products, "transposed" if transpose else ""
    return CACHE.find_or_prepare(pattern, products, problem, purpose, prepare)
