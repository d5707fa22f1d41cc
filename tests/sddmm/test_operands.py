"""Operands that do not hold their values in memory, or not plainly: read right, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import sddmm
from sddmm import SparsePattern
from sddmm.testing import assert_close, random_pattern

S = random_pattern(4, 5, 6)
COO = random_pattern(4, 5, 6, layout="coo", shuffled=True)
A, B = torch.randn(4, 3), torch.randn(3, 5)

LAZY = {
    "negated": lambda x: torch._neg_view(x),
    "imaginary part of a conjugate": lambda x: torch.complex(x, x).conj().imag,
    "zeros without memory": lambda x: torch._efficientzerotensor(
        x.shape, dtype=x.dtype, device=x.device
    ),
}


@pytest.mark.parametrize("kind", LAZY)
@pytest.mark.parametrize("backend", ["cpu", "torch_csr", "reference"])
def test_a_lazy_view_has_its_values(kind: str, backend: str) -> None:
    lazy, values = LAZY[kind], torch.randn(6)
    a, b = lazy(A), lazy(B)
    assert a.is_neg() or a._is_zerotensor()
    plain_a, plain_b = a.clone().contiguous() + 0, b.clone().contiguous() + 0
    matrix = torch.sparse_csr_tensor(S.crow_indices, S.col_indices, lazy(values), (4, 5))
    for layout, arguments in ((S, (S,)), (COO, (COO,)), (matrix, (matrix,))):
        made = sddmm.plan(*arguments, k=3, dtype=a.dtype, backend=backend)
        assert_close(made.run(a, B), layout, plain_a, B)
        assert_close(made.run(A, b), layout, A, plain_b)
        out = torch.full((6,), torch.nan)
        assert_close(made.run(a, b, out=out), layout, plain_a, plain_b)


@pytest.mark.parametrize("kind", LAZY)
def test_a_lazy_view_goes_through_every_entry(kind: str) -> None:
    a = LAZY[kind](A)
    plain = a.clone() + 0
    assert_close(sddmm.sddmm(S, a, B), S, plain, B)
    operator = torch.ops.sddmm.sddmm(S.row_ids, S.col_indices, a, B, None)
    assert_close(operator, S, plain, B)
    b = B.clone().requires_grad_()
    sddmm.sddmm(S, a, b).sum().backward()
    other = B.clone().requires_grad_()
    sddmm.sddmm(S, plain, other).sum().backward()
    torch.testing.assert_close(b.grad, other.grad)


def test_numpy_arrays_of_any_strides_are_read() -> None:
    record = np.zeros(12, dtype=[("x", "f4"), ("y", "u1")])
    record["x"] = A.numpy().ravel()
    assert_close(torch.from_numpy(sddmm.sddmm(S, record["x"].reshape(4, 3), B.numpy())), S, A, B)


NESTED = torch.nested.nested_tensor([A, A[:2]])


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (NESTED, B, r"a must be a dense tensor, got a nested one; call once for each"),
        (A, NESTED, r"b must be a dense tensor, got a nested one"),
        (A.to(torch.complex64), B, r"a must be one of .*got torch.complex64; complex products are"),
        (A, B.int(), r"b must be one of .*got torch.int32; convert it, for example b.float\(\)"),
        (A.bool(), B, r"a must be one of .*got torch.bool; convert it"),
        (
            torch.quantize_per_tensor(A, 0.1, 0, torch.quint8), B,
            r"a must be one of .*got torch.quint8; pass a.dequantize\(\)",
        ),
        (np.ma.masked_array(A.numpy(), A.numpy() > 0), B.numpy(), "a is a masked array, whose"),
        (A.numpy(), B.numpy().astype(">f4"), "b has dtype >f4, not of this machine's byte order"),
    ],
)  # fmt: skip
def test_operands_of_another_kind_are_refused_with_what_to_do(a: Any, b: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message) as refused:
        sddmm.sddmm(S, a, b)
    assert "\n" not in str(refused.value)
    with pytest.raises(TypeError, match=message):
        sddmm.plan(S, k=3, dtype=torch.float32).run(a, b)


def test_leading_dimensions_are_to_be_flattened() -> None:
    a, b = torch.randn(2, 3, 4, 3), torch.randn(2, 3, 3, 5)
    with pytest.raises(
        ValueError, match=r"a must have 2 .* got shape 2x3x4x3; .*a.flatten\(0, -3\)"
    ):
        sddmm.sddmm(S, a, b)
    assert sddmm.sddmm(S, a.flatten(0, -3), b.flatten(0, -3)).shape == (6, 6)


def test_indices_on_the_meta_device_hold_no_values() -> None:
    meta = [x.to("meta") for x in (S.crow_indices, S.col_indices, A, B)]  # type: ignore[union-attr]
    matrix = torch.sparse_csr_tensor(meta[0], meta[1], torch.ones(6, device="meta"), (4, 5))
    message = "crow_indices and col_indices are on meta, which holds no values; put them on cpu or"
    with pytest.raises(ValueError, match=message):
        SparsePattern.from_csr(meta[0], meta[1], (4, 5))
    with pytest.raises(ValueError, match=message):
        sddmm.sddmm(matrix, meta[2], meta[3])
    rows = torch.zeros(6, dtype=torch.int64, device="meta")
    shape = torch.ops.sddmm.sddmm(rows, meta[1], meta[2], meta[3], None).shape
    assert shape == (6,)


@pytest.mark.parametrize("name", ["k", "heads"])
def test_sizes_beyond_those_of_tensors_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be below 2\*\*63"):
        sddmm.plan(S, **{"k": 3, "dtype": torch.float32, name: 10**30})


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("kind", ["negated", "zeros without memory"])
def test_a_lazy_view_has_its_values_on_a_gpu(kind: str, dtype: torch.dtype) -> None:
    """Kernels take the pointers of a, b and S's values."""
    lazy, crow, cols = LAZY[kind], S.crow_indices, S.col_indices
    assert crow is not None
    a, b, values = (torch.randn(shape, device="cuda").to(dtype) for shape in ((4, 3), (3, 5), (6,)))
    lazy_a, lazy_b, lazy_values = lazy(a), lazy(b), lazy(values)
    plain_a, plain_b, plain_values = (x.clone() + 0 for x in (lazy_a, lazy_b, lazy_values))
    matrix = torch.sparse_csr_tensor(crow.cuda(), cols.cuda(), lazy_values, (4, 5))
    plain = torch.sparse_csr_tensor(crow.cuda(), cols.cuda(), plain_values, (4, 5))
    made = sddmm.plan(matrix, k=3, dtype=dtype)
    out = torch.full((6,), torch.nan, dtype=dtype, device="cuda")
    assert_close(made.run(lazy_a, lazy_b), plain, plain_a, plain_b)
    assert_close(made.run(lazy_a, lazy_b, out=out), plain, plain_a, plain_b)
    assert_close(sddmm.sddmm(matrix, lazy_a, b).values(), plain, plain_a, b)
