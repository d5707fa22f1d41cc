"""How right a result must be, and patterns to try it on. Public: for tests and for benchmarks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from sddmm.operands import as_operands, oriented
from sddmm.ops.base import rounded_bound
from sddmm.ops.base import tolerance as tolerance
from sddmm.ops.sddmm import magnitude as _magnitude
from sddmm.ops.sddmm import plan
from sddmm.sparse.containers import read
from sddmm.sparse.pattern import SparsePattern


def reference(S: Any, a: Any, b: Any, *, alpha: float = 1.0, scale: bool = True) -> Tensor:
    """sddmm's values accumulated in float64 from the definition, as a float64 tensor."""
    a, b, _ = as_operands(a, b)
    heads = a.shape[0] if a.dim() == 3 else None
    truth = plan(
        S,
        k=a.shape[-1],
        dtype=a.dtype,
        heads=heads,
        out_dtype=torch.float64,
        alpha=alpha,
        scale=scale,
        backend="reference",
    )
    with torch.no_grad():
        values: Tensor = truth.run(a, b)
    return values


def magnitude(S: Any, a: Any, b: Any) -> Tensor:
    """|a_i| |b_j|, the norms of the row of a and the column of b of every value, in float64.

    By Cauchy-Schwarz it bounds sum |a_i b_i|, and costs m + n norms instead of another SDDMM.
    Subnormal numbers of the half types count as the smallest normal one.
    """
    sampling = read(S)
    a, b, _ = as_operands(a, b)
    a, b = oriented(a, b, sampling.pattern, sampling.transposed)
    return _magnitude(sampling.pattern, a, b)


def error_bound(
    S: Any,
    a: Any,
    b: Any,
    truth: Tensor,
    *,
    out_dtype: torch.dtype,
    alpha: float = 1.0,
    scale: bool = True,
    precision: str = "ieee",
) -> Tensor:
    """Largest allowed |value - truth| of every value, float64, shaped like `truth`.

    `tolerance` of the values' `magnitude`, and rounding to `out_dtype`.
    """
    a, b, _ = as_operands(a, b)
    size = magnitude(S, a, b) * abs(alpha)
    weights = read(S).values
    if scale and weights is not None:
        size = size * weights.double().abs()
    slack = tolerance(a.dtype, a.shape[-1], precision=precision) * size
    return rounded_bound(slack, truth, out_dtype)


def assert_close(
    values: Any,
    S: Any,
    a: Any,
    b: Any,
    *,
    alpha: float = 1.0,
    scale: bool = True,
    precision: str = "ieee",
) -> None:
    """Raise AssertionError unless `values`, ([h,] nnz), are sddmm(S, a, b) within `error_bound`.

    A NaN or infinity is right only where the float64 result has the same.
    """
    truth = reference(S, a, b, alpha=alpha, scale=scale)
    got = values if isinstance(values, Tensor) else torch.as_tensor(values, device="cpu")
    got = got.detach()
    if got.shape != truth.shape:
        raise AssertionError(f"values have shape {tuple(got.shape)}, not {tuple(truth.shape)}")
    bound = error_bound(
        S, a, b, truth, out_dtype=got.dtype, alpha=alpha, scale=scale, precision=precision
    )
    wrong = mismatches(got, truth, bound)
    if bool(wrong.any()):
        at = tuple(int(x) for x in wrong.nonzero()[0])
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.numel()} values are wrong, first at {at}: "
            f"{float(got[at])} is not {float(truth[at])} within {float(bound[at]):.3g}"
        )


def mismatches(values: Tensor, truth: Tensor, bound: Tensor) -> Tensor:
    """Where `values` is neither within `bound` of `truth` nor `truth` rounded, NaN included."""
    rounded = truth.to(values.dtype)
    same = (values == rounded) | (values.isnan() & rounded.isnan())
    close = truth.isfinite() & ((values.double() - truth).abs() <= bound)
    return ~(same | close)


@contextlib.contextmanager
def poisoned_outputs() -> Iterator[None]:
    """Within the block torch.empty and torch.empty_like give NaN instead of old memory.

    A kernel that leaves an output unwritten is then wrong for certain. Not thread-safe.
    """

    def poisoned(empty: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def make(*args: Any, **kwargs: Any) -> Tensor:
            tensor = empty(*args, **kwargs)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return make

    with (
        mock.patch.object(torch, "empty", poisoned(torch.empty)),
        mock.patch.object(torch, "empty_like", poisoned(torch.empty_like)),
    ):
        yield


def random_pattern(
    m: int,
    n: int,
    nnz: int,
    *,
    layout: str = "csr",
    shuffled: bool = False,
    index_dtype: torch.dtype = torch.int64,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> SparsePattern:
    """nnz distinct positions of an m x n matrix, uniformly at random; sorted unless `shuffled`.

    layout: "csr" or "coo"; only COO can be shuffled.
    """
    if layout not in ("csr", "coo") or (shuffled and layout == "csr"):
        raise ValueError(f"layout must be 'csr', or 'coo' (shuffled or not), got {layout!r}")
    if not 0 <= nnz <= m * n:
        raise ValueError(f"nnz must lie in 0..m*n = {m * n}, got {nnz}")
    rng = np.random.default_rng(seed)
    flat = rng.choice(m * n, nnz, replace=False) if nnz else np.empty(0, np.int64)
    flat = flat if shuffled else np.sort(flat)
    rows, cols = (
        torch.from_numpy(x).to(index_dtype).to(device) for x in np.divmod(flat, max(1, n))
    )
    pattern = SparsePattern.from_coo(rows, cols, (m, n))
    return pattern.to_csr() if layout == "csr" else pattern
