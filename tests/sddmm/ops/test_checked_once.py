"""Operands are checked once for all calls with equal metadata, and again where one differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sddmm
from sddmm.cache import CACHE
from sddmm.testing import assert_spmm_close, random_pattern

M, N, D, NNZ = 6, 5, 4, 12
S = random_pattern(M, N, NNZ, layout="csr")
V, X = torch.randn(NNZ), torch.randn(N, D)
Q, K = torch.randn(M, D), torch.randn(N, D)


def spmm(values: Tensor = V, dense: Tensor = X, **options: Any) -> Tensor:
    result: Tensor = sddmm.spmm(S, dense, values=values, **options)
    return result


def by_operator(
    values: Tensor = V, dense: Tensor = X, factors: Tensor | None = None, **options: Any
) -> Tensor:
    result: Tensor = torch.ops.sddmm.spmm(
        S.major_indices, S.col_indices, values, dense, factors,
        m=M, n=N, compressed=True, **options,
    )  # fmt: skip
    return result


def attention(
    q: Tensor = Q, k: Tensor = K, v: Tensor = X, bias: Tensor | None = V, **options: Any
) -> Tensor:
    result: Tensor = sddmm.sparse_attention(S, q, k, v, bias=bias, **options)
    return result


OF_PRODUCTS: list[tuple[dict[str, Any], str]] = [
    ({"values": V[:-1]}, "must have one entry per nonzero"),
    ({"values": V.to_sparse()}, "must be a dense tensor"),
    ({"dense": X[1:]}, "so dense must have 5 rows"),
    ({"dense": X[0]}, "must have 2 dimensions"),
    ({"dense": X.to_sparse()}, "dense must be a dense tensor"),
    ({"dense": X.int()}, "dense must be one of"),
    ({"transpose": True}, "so dense must have 6 rows"),
    ({"out_dtype": torch.int32}, "out_dtype must be one of"),
]


@pytest.mark.parametrize(
    ("call", "changed", "message"),
    [
        *((call, *case) for call in (spmm, by_operator) for case in OF_PRODUCTS),
        (spmm, {"values": V.double()}, "their dtypes must agree"),
        (spmm, {"values": V.to("meta")}, "move one"),
        (spmm, {"dense": X.to("meta")}, "dense is on meta"),
        (by_operator, {"factors": V.double()}, "their dtypes must agree"),
        (by_operator, {"factors": V[1:]}, "factors must have one entry per nonzero"),
        (attention, {"q": Q[1:]}, "so q must have 6 rows"),
        (attention, {"k": K.double()}, "k is torch.float64 and q is torch.float32"),
        (attention, {"k": K[:, 1:]}, "must have as many columns"),
        (attention, {"v": X.to("meta")}, "v is on meta"),
        (attention, {"v": X.to_sparse()}, "v must be a dense tensor"),
        (attention, {"v": X.expand(2, N, D)}, "must both be 2-D, or both 3-D"),
        (attention, {"bias": V[1:]}, "bias must have one entry per nonzero"),
        (attention, {"bias": V.half()}, "bias is torch.float16"),
    ],
)
def test_a_call_that_fits_is_no_precedent_for_another(
    call: Any, changed: dict[str, Any], message: str
) -> None:
    for _ in range(2):
        call()
    with pytest.raises((TypeError, ValueError), match=message):
        call(**changed)


def test_nor_is_one_that_fits_under_autocast_alone() -> None:
    half, values = X.half().numpy(), V.numpy()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert isinstance(sddmm.spmm(S, half, values=values), np.ndarray)
    with pytest.raises(TypeError, match="their dtypes must agree"):
        sddmm.spmm(S, half, values=values)


@pytest.mark.parametrize("transpose", [False, True])
def test_calls_that_fit_are_told_apart(transpose: bool) -> None:
    square = random_pattern(M, M, NNZ)
    dense = torch.randn(M, D)
    for values in V, V.expand(3, NNZ):
        for x in (dense, dense.expand(3, M, D)) if values.dim() == 1 else (dense.expand(3, M, D),):
            for out_dtype in None, torch.float64:
                options: Any = {"values": values, "transpose": transpose}
                result = sddmm.spmm(square, x, **options, out_dtype=out_dtype)
                assert result.dtype == (out_dtype or x.dtype)
                assert_spmm_close(result, square, x, **options)


def test_the_cache_knows_a_pattern_by_its_own_tensors_until_they_change() -> None:
    pattern = random_pattern(M, N, NNZ, layout="csr", seed=3)
    crow, cols = pattern.major_indices, pattern.col_indices
    own = (crow, cols, (M, N), True)
    assert CACHE.over_tensors(*own) is None
    CACHE.of_pattern(pattern)
    assert CACHE.over_tensors(*own) is pattern
    assert CACHE.over_tensors(crow, cols.detach(), (M, N), True) is None
    assert CACHE.over_tensors(crow, cols, (M, N + 1), True) is None
    cols.add_(0)
    assert CACHE.over_tensors(*own) is None
    CACHE.of_pattern(pattern)
    cols.numpy()  # from now on torch does not count all changes
    assert CACHE.over_tensors(*own) is None
