"""sparse_attention refuses what it cannot compute, naming the argument."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import sddmm
from sddmm import SparsePattern
from sddmm.testing import random_pattern

M, N, NNZ, D, DV = 9, 7, 30, 5, 4
CSR = random_pattern(M, N, NNZ)
COO = random_pattern(M, N, NNZ, layout="coo", shuffled=True)
Q, K, V = torch.randn(M, D), torch.randn(N, D), torch.randn(N, DV)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"q": Q[:-1]}, ValueError, "S has shape 9x7, so q must have 9 rows; got q 8x5"),
        ({"k": K[:-1]}, ValueError, "k must have 7 rows"),
        ({"v": V[:-1]}, ValueError, "v must have 7 rows"),
        ({"k": K[:, :-1]}, ValueError, "q 9x5 and k 7x4 must have as many columns"),
        ({"k": K[None]}, ValueError, "k 1x7x5 and q 9x5 must both be 2-D, or both 3-D"),
        ({"q": Q[None, None]}, ValueError, r"q must have 2 dim.*q.flatten\(0, -3\)"),
        ({"v": V.half()}, TypeError, "v is torch.float16 and q is torch.float32; convert one"),
        ({"q": Q.long()}, TypeError, "q must be one of float16.*got torch.int64; convert it"),
        ({"k": K + 0j}, TypeError, "complex attention is not supported"),
        ({"k": K.to("meta")}, ValueError, "k is on meta and S on cpu"),
        ({"v": V.to_sparse()}, TypeError, "v must be a dense tensor"),
        ({"bias": V}, ValueError, r"bias must have one entry per nonzero, \(30,\) beside q 9x5"),
        ({"bias": torch.randn(2, NNZ)}, ValueError, "got shape 2x30"),
        ({"bias": [1.0] * NNZ}, TypeError, "bias must be a torch tensor, a numpy or a cupy array"),
        ({"scale": "big"}, TypeError, "scale must be a real number, got 'big'"),
        ({"scale": torch.ones((), requires_grad=True)}, ValueError, "scale is a tensor that"),
        ({"dropout_p": 1.5}, ValueError, r"dropout_p must lie in 0..1, got 1.5"),
        ({"dropout_p": float("nan")}, ValueError, "dropout_p must lie in 0..1, got nan"),
        ({"generator": 3}, TypeError, "generator must be a torch.Generator"),
        ({"S": torch.ones(3, 3)}, TypeError, "S must be a torch sparse"),
        ({"S": SparsePattern.from_coo([M], [0], (M, N))}, ValueError, r"row_indices\[0\] is 9"),
    ],
)  # fmt: skip
def test_refusals_name_the_argument(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = {"S": CSR, "q": Q, "k": K, "v": V, **changes}
    with pytest.raises(error, match=message):
        sddmm.sparse_attention(**arguments)


def test_what_it_cannot_differentiate_is_refused() -> None:
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
        sddmm.sparse_attention(CSR, forward_ad.make_dual(Q, Q), K, V)
    q, k, v = (x.clone().requires_grad_() for x in (Q, K, V))
    inputs = (COO.row_ids, COO.col_indices, q, k, v, None, None)
    out, lse = torch.ops.sddmm.attention(*inputs)
    found = torch.ops.sddmm.attention_backward(
        *inputs, out, lse, torch.ones_like(out), None, needs=[True] * 3 + [False]
    )
    with pytest.raises(NotImplementedError, match="with create_graph=True"):
        found[0].sum().backward()
