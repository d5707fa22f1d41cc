"""Problems: the sizes, dtypes and device of a product, on which all choices depend."""

from __future__ import annotations

import functools
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch

from sddmm.dtypes import DTYPES, PRECISIONS, common_accumulator, dtype_names

if TYPE_CHECKING:
    from sddmm.sparse.pattern import SparsePattern


class SddmmProblem(NamedTuple):
    """All that the choice of a backend and a kernel may depend on. Hashable.

    An m x n pattern of nnz nonzeros, an inner dimension k, operands of `dtype`, values of
    `out_dtype`; `heads` is None for 2-D operands. `precision` is the least exact arithmetic that
    the caller accepts for float32; half types accumulate in float32. `blocksize`: that of a BSR
    pattern, whose order of nonzeros is its; None for the other forms. `scaled`: whether the samples
    are multiplied by S's values, which a kernel then reads.
    """

    m: int
    n: int
    k: int
    nnz: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    precision: str
    index_dtype: torch.dtype
    heads: int | None
    device: torch.device
    blocksize: tuple[int, int] | None = None
    scaled: bool = False

    def values_shape(self) -> tuple[int, ...]:
        return (self.nnz,) if self.heads is None else (self.heads, self.nnz)

    @property
    def flops(self) -> int:
        """Useful floating-point operations: a multiply and an add per k, nonzero and head."""
        return 2 * self.nnz * self.k * (1 if self.heads is None else self.heads)

    def a_shape(self) -> tuple[int, ...]:
        return (self.m, self.k) if self.heads is None else (self.heads, self.m, self.k)

    def b_shape(self) -> tuple[int, ...]:
        return (self.k, self.n) if self.heads is None else (self.heads, self.k, self.n)


class SpmmProblem(NamedTuple):
    """All that the choice of a backend and a kernel for a product W X may depend on. Hashable.

    W: m x n, with nnz nonzeros of `values_dtype`; for a product with S's transpose, S's transpose.
    values_have_heads: whether each head has its own weights. has_factors: whether they are to be
    multiplied by S's own values, (nnz,) of `dtype`. X: n x k of `dtype`; `heads` is None for a 2-D
    X. The result has `out_dtype`. `precision` is as in SddmmProblem; only "ieee" is requested.
    is_lean: whether weights of one head at a time are put in order, if any, as in gradients, which
    are to take no memory for every head and nonzero.
    """

    m: int
    n: int
    k: int
    nnz: int
    dtype: torch.dtype
    values_dtype: torch.dtype
    out_dtype: torch.dtype
    index_dtype: torch.dtype
    heads: int | None
    values_have_heads: bool
    has_factors: bool
    device: torch.device
    precision: str = "ieee"
    is_lean: bool = False

    @property
    def accumulator(self) -> torch.dtype:
        """The dtype of all products and sums."""
        return common_accumulator(self.values_dtype, self.dtype)

    @property
    def flops(self) -> int:
        """Useful floating-point operations: a multiply and an add per k, nonzero and head."""
        return 2 * self.nnz * self.k * (1 if self.heads is None else self.heads)

    def out_shape(self) -> tuple[int, ...]:
        return (self.m, self.k) if self.heads is None else (self.heads, self.m, self.k)


class AttentionProblem(NamedTuple):
    """All that the choice of a backend and a kernel for sparse attention may depend on. Hashable.

    An m x n pattern of nnz nonzeros; q (heads, m, d), k (heads, n, d), v (heads, n, dv) and the
    result (heads, m, dv), all of `dtype`. heads counts 1 where the caller's operands have none.
    has_bias: whether a bias is added to the scores; bias_has_heads: whether each head has its own,
    (heads, nnz), else all share (nnz,). has_dropout: whether weights are dropped.
    """

    m: int
    n: int
    nnz: int
    d: int
    dv: int
    heads: int
    dtype: torch.dtype
    index_dtype: torch.dtype
    device: torch.device
    has_bias: bool = False
    bias_has_heads: bool = False
    has_dropout: bool = False

    @property
    def accumulator(self) -> torch.dtype:
        """The dtype of scores, weights, all sums, and the logarithms that are kept of them."""
        return DTYPES[self.dtype].accumulator

    @property
    def flops(self) -> int:
        """Useful floating-point operations of the forward, exponentials left out."""
        return 2 * self.nnz * (self.d + self.dv) * self.heads


Problem = SddmmProblem | SpmmProblem | AttentionProblem
"""A problem of any operator."""

P = TypeVar("P", bound=Problem)

# The density up to which problems of about the same shape are alike. In denser patterns tiles may
# compete, whose number follows from the very shape: those are alike only if m and n are equal.
_SPARSE = 0.01
# The significant bits of the sizes of alike problems, and of the nonzeros of denser ones.
_BITS, _DENSE_BITS = 5, 8
# The size from which on a problem is alike to itself alone: beside it choosing takes no time.
_LARGE = 2**22


@functools.lru_cache(maxsize=256)  # as each step of a first call asks for the same
def alike(problem: P) -> P:
    """The problem that stands for all of about its sizes, so that what is chosen for one mini-batch
    is chosen for the next.

    nnz is rounded to the nearest, by 3 % at most, of patterns denser than 1 % by 0.4 %; m and n of
    sparser ones are rounded up, by 6 % at most. Full patterns alone become full ones.
    """
    m, n, nnz = problem.m, problem.n, problem.nnz
    if max(m, n, nnz) >= _LARGE or nnz == m * n:
        return problem
    if nnz <= _SPARSE * m * n:
        return cast("P", problem._replace(m=_rounded_up(m), n=_rounded_up(n), nnz=rounded(nnz)))
    dense = rounded(nnz, _DENSE_BITS)
    return cast("P", problem._replace(nnz=dense if nnz > m * n else min(dense, m * n - 1)))


def without_sizes(problem: P) -> P:
    """What an m x n pattern of nnz nonzeros shares with all others: its kernels' types and k."""
    return cast("P", problem._replace(m=0, n=0, nnz=0))


def rounded(size: int, significant: int = _BITS) -> int:
    """The nearest size of alike problems."""
    bits = size.bit_length() - significant
    return size if bits <= 0 else (size + (1 << bits - 1)) >> bits << bits


def _rounded_up(size: int) -> int:
    bits = size.bit_length() - _BITS
    return size if bits <= 0 else (size + (1 << bits) - 1) >> bits << bits


def make_problem(
    pattern: SparsePattern,
    *,
    k: Any,
    dtype: Any,
    heads: Any = None,
    out_dtype: Any = None,
    precision: Any = "ieee",
    scaled: bool = False,
) -> SddmmProblem:
    """The problem of sampling with `pattern`, every argument checked."""
    out_dtype = dtype if out_dtype is None else out_dtype
    if dtype not in DTYPES or out_dtype not in DTYPES:
        name, value = ("out_dtype", out_dtype) if dtype in DTYPES else ("dtype", dtype)
        raise TypeError(f"{name} must be one of {dtype_names(DTYPES)}, got {value!r}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if precision != "ieee" and dtype != torch.float32:
        raise ValueError(f"precision={precision!r} applies to float32 only, got dtype {dtype}")
    heads = None if heads is None else checked_integer(heads, "heads", 0)
    return SddmmProblem(  # by position, as names cost a third of a microsecond at every plan
        *pattern.shape, checked_integer(k, "k", 0), pattern.nnz, dtype, out_dtype, precision,
        pattern.index_dtype, heads, pattern.device, pattern.blocksize, scaled,
    )  # fmt: skip


def product_shape(shape: tuple[int, int], transpose: bool) -> tuple[int, int]:
    """Rows and columns of the matrix that multiplies the dense operand."""
    return (shape[1], shape[0]) if transpose else shape


def checked_integer(value: Any, name: str, least: int) -> int:
    """The integer. TypeError or ValueError unless it is one, at least `least`, that torch takes."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise TypeError(f"{name} must be an integer >= {least}, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value}")
    if int(value) >= 2**63:
        raise ValueError(f"{name} must be below 2**63, as torch's sizes are, got {value}")
    return int(value)
