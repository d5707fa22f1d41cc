"""Torch checks no invariants of a CSR tensor where it is told so; its first call does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sddmm

M, N, K = 2, 3, 4
CROW, COLS, VALUES = torch.tensor([0, 1, 2]), torch.tensor([2, 0]), torch.ones(2)


def csr_tensor(crow: Tensor = CROW, cols: Tensor = COLS, values: Tensor = VALUES) -> Tensor:
    return torch.sparse_csr_tensor(
        crow, cols, values, (M, N), device=crow.device, check_invariants=False
    )


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"values": torch.ones(1)}, ValueError, r"one value per nonzero, \(2,\), got shape 1$"),
        ({"crow": CROW.int()}, TypeError, "crow_indices is torch.int32 and col_indices torch.int6"),
        ({"crow": CROW[:2]}, ValueError, r"must have m \+ 1 = 3 entries for shape \(2, 3\), got 2"),
        (
            {"crow": CROW.to("meta"), "cols": COLS.to("meta"), "values": VALUES.to("meta")},
            ValueError,
            "are on meta, which holds no values",
        ),
    ],
)
def test_parts_that_do_not_fit_are_told(changed: Any, error: type, message: str) -> None:
    S = csr_tensor(**changed)
    for _ in range(2):
        with pytest.raises(error, match=message):
            sddmm.sddmm(S, torch.ones(M, K), torch.ones(K, N))


def test_heads_and_arrays_get_values_of_their_kind() -> None:
    a, b = torch.randn(M, K), torch.randn(K, N)
    expected = (a @ b)[[0, 1], [2, 0]]
    heads = sddmm.sddmm(csr_tensor(), a.expand(5, M, K), b.expand(5, K, N))
    assert heads.shape == (5, 2)
    torch.testing.assert_close(heads, expected.expand(5, 2))
    arrays = sddmm.sddmm(csr_tensor(), a.expand(5, M, K).numpy(), b.expand(5, K, N).numpy())
    torch.testing.assert_close(torch.from_numpy(arrays), expected.expand(5, 2))
    of_arrays = sddmm.sddmm(csr_tensor(), a.numpy(), b.numpy())
    assert of_arrays.layout == torch.sparse_csr
    torch.testing.assert_close(of_arrays.values(), expected)


def test_values_that_a_call_does_not_use_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = torch.randn(M, K), torch.randn(N, K), torch.randn(N, K)
    attended = sddmm.sparse_attention(csr_tensor(), q, k, v)
    product = sddmm.spmm(csr_tensor(), v, values=2 * VALUES)
    torch.testing.assert_close(attended, v[[2, 0]])
    torch.testing.assert_close(product, 2 * v[[2, 0]])
    own, others = csr_tensor(), [csr_tensor() for _ in range(2)]
    with monkeypatch.context() as refusing:
        refusing.setattr(Tensor, "values", lambda S: pytest.fail("the values were read"))
        assert torch.equal(sddmm.sparse_attention(others[0], q, k, v), attended)
        assert torch.equal(sddmm.spmm(others[1], v, values=2 * VALUES), product)
        with pytest.raises(pytest.fail.Exception):
            sddmm.spmm(own, v)
