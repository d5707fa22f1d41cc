"""Which operands give CuPy results, tried without a GPU: a stand-in for CuPy over the CPU's memory.

The stand-in has what the package asks of CuPy: arrays that give and take DLPack.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import sddmm
from sddmm import SparsePattern
from sddmm.testing import assert_close, assert_spmm_close, random_pattern

COO = random_pattern(4, 5, 6, layout="coo", shuffled=True)
CSR = random_pattern(4, 5, 6)


class ndarray:
    __module__ = "cupy"

    def __init__(self, array: Any) -> None:
        self.array = array
        self.dtype, self.itemsize, self.strides = array.dtype, array.itemsize, array.strides
        self.shape, self.size = array.shape, array.size

    def copy(self) -> ndarray:
        return ndarray(self.array.copy())

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.fixture(autouse=True)
def _cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy: Any = ModuleType("cupy")
    cupy.from_dlpack = lambda tensor: ndarray(np.from_dlpack(tensor))
    monkeypatch.setitem(sys.modules, "cupy", cupy)


def randn(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


A, B, V, X = randn(4, 3), randn(3, 5), randn(6), randn(5, 2)
GPU_A, GPU_B, GPU_V, GPU_X = (ndarray(x) for x in (A, B, V, X))


def test_all_operands_of_cupy_give_a_result_of_cupy() -> None:
    values = sddmm.sddmm(COO, GPU_A, GPU_B)
    assert isinstance(values, ndarray)
    assert_close(torch.from_numpy(values.array), COO, A, B)
    plan = sddmm.plan(COO, k=3, dtype=torch.float32)
    assert isinstance(plan.run(GPU_A, GPU_B), ndarray)
    heads = sddmm.sddmm(COO, ndarray(randn(2, 4, 3)), ndarray(randn(2, 3, 5)))
    assert heads.shape == (2, 6)
    product = sddmm.spmm(COO, GPU_X, values=GPU_V, alpha=0.5)
    assert isinstance(product, ndarray)
    assert_spmm_close(product.array, COO, X, values=V, alpha=0.5)


def test_a_tensor_among_the_operands_gives_a_tensor() -> None:
    for a, b in ((GPU_A, torch.from_numpy(B)), (torch.from_numpy(A), GPU_B), (GPU_A, B)):
        values = sddmm.sddmm(COO, a, b)
        assert isinstance(values, torch.Tensor)
        assert_close(values, COO, A, B)
    product = sddmm.spmm(COO, GPU_X, values=torch.from_numpy(V))
    assert isinstance(product, torch.Tensor)
    assert_spmm_close(product, COO, X, values=V)
    out = torch.empty(6)
    assert sddmm.plan(COO, k=3, dtype=torch.float32).run(GPU_A, GPU_B, out=out) is out
    assert_close(out, COO, A, B)


@pytest.mark.parametrize("convert", [ndarray, lambda x: x], ids=["cupy", "numpy"])
@pytest.mark.parametrize("pattern", [CSR, COO], ids=["csr", "coo"])
def test_a_torch_matrix_gives_a_torch_matrix_whatever_the_operands_are(
    pattern: SparsePattern, convert: Any
) -> None:
    S = pattern.to_torch(torch.from_numpy(V))
    for function in (sddmm.sddmm, sddmm.sampled_addmm):
        result = function(S, convert(A), convert(B))
        expected = function(S, torch.from_numpy(A), torch.from_numpy(B))
        assert result.layout == S.layout
        torch.testing.assert_close(result.to_dense(), expected.to_dense())
    assert type(sddmm.spmm(S, convert(X))) is type(convert(X))


def test_operands_share_their_memory_and_odd_strides_are_copied() -> None:
    a = A.copy()
    shared = ndarray(a)
    before = sddmm.sddmm(COO, shared, GPU_B).array.copy()
    a *= 2
    np.testing.assert_allclose(sddmm.sddmm(COO, shared, GPU_B).array, 2 * before, rtol=1e-6)
    values = sddmm.sddmm(COO, ndarray(a[::-1]), ndarray(B[:, ::-1]))
    assert_close(values.array, COO, a[::-1].copy(), B[:, ::-1].copy())


def test_a_gradient_beside_cupy_arrays_is_of_what_they_held() -> None:
    a, b = A.copy(), torch.from_numpy(B).requires_grad_()
    values = sddmm.sddmm(COO, ndarray(a), b)
    a[:] = 0
    values.sum().backward()
    other = b.detach().clone().requires_grad_()
    sddmm.sddmm(COO, torch.from_numpy(A), other).sum().backward()
    torch.testing.assert_close(b.grad, other.grad)


def test_indices_of_cupy_make_a_pattern_of_its_own_memory() -> None:
    rows, cols = COO.row_ids.numpy().copy(), COO.col_indices.numpy().copy()
    indices = ndarray(rows), ndarray(cols)
    pattern = SparsePattern.from_coo(*indices, (4, 5))
    assert pattern == COO
    values = sddmm.sddmm((*indices, (4, 5)), GPU_A, GPU_B)
    assert_close(values.array, COO, A, B)
    cols[:] = 0
    assert pattern == COO


def test_what_cupy_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match=r"cupy has no bfloat16; pass out_dtype=torch.float32"):
        sddmm.sddmm(COO, GPU_A, GPU_B, out_dtype=torch.bfloat16)
    with pytest.raises(TypeError, match=r"a must be one of .* got torch.int32"):
        sddmm.sddmm(COO, ndarray(A.astype(np.int32)), GPU_B)
    with pytest.raises(
        TypeError, match=r"a is a cupy array of datetime64.* that torch cannot share"
    ):
        sddmm.sddmm(COO, ndarray(A.astype("M8[s]")), GPU_B)


def test_autocast_leaves_operands_of_cupy_as_they_are() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert sddmm.sddmm(COO, GPU_A, GPU_B).dtype == np.float32
        assert sddmm.sddmm(COO, GPU_A, torch.from_numpy(B)).dtype == torch.bfloat16
