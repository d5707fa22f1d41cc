"""CuPy arrays and cupyx matrices on a GPU: shared memory, kinds of results, order of streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import sddmm
from sddmm import SparsePattern
from sddmm.testing import assert_close, assert_spmm_close, random_pattern

pytestmark = pytest.mark.gpu

M, N, K = 300, 200, 32


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture
def pattern() -> SparsePattern:
    return random_pattern(M, N, 5000, device="cuda")


def randn(cupy: Any, *shape: int, dtype: Any = np.float32) -> Any:
    return cupy.asarray(np.random.default_rng(0).standard_normal(shape).astype(dtype))


def tensor(array: Any) -> torch.Tensor:
    """A copy, by way of the host."""
    return torch.from_numpy(array.get()).cuda()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("lead", [(), (3,)])
def test_operands_of_cupy_give_values_of_cupy(
    cupy: Any, pattern: SparsePattern, dtype: Any, lead: Any
) -> None:
    a, b = randn(cupy, *lead, M, K, dtype=dtype), randn(cupy, *lead, K, N, dtype=dtype)
    values = sddmm.sddmm(pattern, a, b)
    assert isinstance(values, cupy.ndarray)
    assert (values.dtype, values.shape) == (dtype, (*lead, 5000))
    assert_close(tensor(values), pattern, tensor(a), tensor(b))
    dtype_of_torch = tensor(a).dtype
    plan = sddmm.plan(pattern, k=K, dtype=dtype_of_torch, heads=lead[0] if lead else None)
    assert_close(tensor(plan.run(a, b)), pattern, tensor(a), tensor(b))
    dense = randn(cupy, *lead, N, K, dtype=dtype)
    product = sddmm.spmm(pattern, dense, values=values)
    assert isinstance(product, cupy.ndarray)
    assert_spmm_close(tensor(product), pattern, tensor(dense), values=tensor(values))


def test_a_tensor_beside_an_array_gives_a_tensor(cupy: Any, pattern: SparsePattern) -> None:
    a, b = randn(cupy, M, K), torch.randn(K, N, device="cuda", requires_grad=True)
    values = sddmm.sddmm(pattern, a, b)
    assert isinstance(values, torch.Tensor)
    assert_close(values, pattern, tensor(a), b)
    values.sum().backward()
    assert b.grad is not None
    assert b.grad.is_cuda


@pytest.mark.parametrize(("m", "k", "nnz"), [(M, 0, 5000), (0, K, 0), (M, K, 0)])
def test_empty_arrays(cupy: Any, m: int, k: int, nnz: int) -> None:
    S = random_pattern(m, N, nnz, device="cuda")
    values = sddmm.sddmm(S, randn(cupy, m, k), randn(cupy, k, N))
    assert isinstance(values, cupy.ndarray)
    assert values.shape == (nnz,)
    assert not values.any()
    product = sddmm.spmm(S, randn(cupy, N, k), values=values)
    assert product.shape == (m, k)
    assert not product.any()


@pytest.mark.parametrize("kind", ["coo", "csr", "csc"])
def test_a_cupyx_matrix_gives_its_kind(cupy: Any, kind: str) -> None:
    sparse = pytest.importorskip("cupyx.scipy.sparse")
    matrix = sparse.random(M, N, 0.05, format=kind, dtype=np.float32)
    a, b, dense = randn(cupy, M, K), randn(cupy, K, N), randn(cupy, N, K)
    result = sddmm.sddmm(matrix, a, b)
    assert type(result) is type(matrix)
    expected = matrix.toarray() * (a @ b)
    cupy.testing.assert_allclose(result.toarray(), expected, rtol=1e-3, atol=1e-3)
    product = sddmm.spmm(matrix, dense)
    assert isinstance(product, cupy.ndarray)
    cupy.testing.assert_allclose(product, matrix @ dense, rtol=1e-3, atol=1e-3)
    assert isinstance(sddmm.spmm(matrix, tensor(dense)), torch.Tensor)
    pattern = SparsePattern.from_scipy(matrix)
    assert (pattern.device.type, pattern.nnz) == ("cuda", matrix.nnz)
    values = sddmm.sddmm(pattern, a, b)
    cupy.testing.assert_allclose(values * matrix.data, result.data, rtol=1e-3, atol=1e-3)


def test_index_tuples_of_cupy(cupy: Any, pattern: SparsePattern) -> None:
    rows, cols = (cupy.asarray(x.cpu().numpy()) for x in (pattern.row_ids, pattern.col_indices))
    a, b = randn(cupy, M, K), randn(cupy, K, N)
    values = sddmm.sddmm((rows, cols, (M, N)), a, b)
    cols[:] = 0  # at once, on CuPy's stream: the pattern has copied them before
    assert_close(tensor(values), pattern, tensor(a), tensor(b))


def spin(cupy: Any) -> Any:
    """A kernel that keeps the current stream busy for some milliseconds."""
    return cupy.RawKernel(
        'extern "C" __global__ void spin(long long n) '
        "{ long long begin = clock64(); while (clock64() - begin < n) {} }",
        "spin",
    )


@pytest.mark.parametrize("cupy_stream", [False, True])
@pytest.mark.parametrize("torch_stream", [False, True])
def test_each_library_waits_for_the_other_s_stream(
    cupy: Any, pattern: SparsePattern, cupy_stream: bool, torch_stream: bool
) -> None:
    """Operands that CuPy is still to write are read afterwards; so is the result by CuPy."""
    kernel = spin(cupy)
    a, b = randn(cupy, M, K), randn(cupy, K, N)
    expected = tensor(sddmm.sddmm(pattern, a, b))
    late = cupy.zeros_like(a)
    cupy.cuda.Device().synchronize()
    of_cupy = cupy.cuda.Stream(non_blocking=True) if cupy_stream else cupy.cuda.Stream.null
    of_torch = torch.cuda.Stream() if torch_stream else torch.cuda.default_stream()
    with of_cupy, torch.cuda.stream(of_torch):
        kernel((1,), (1,), (np.int64(20_000_000),))
        late[:] = a
        values = sddmm.sddmm(pattern, late, b)
        late[:] = 0  # after torch's kernel has read it
        doubled = values * 2  # after torch's kernel has written them
        mixed = sddmm.sddmm(pattern, a, torch.utils.dlpack.from_dlpack(b))
        a_again = a.copy()
        a[:] = 0
        of_cupy.synchronize()
    torch.cuda.synchronize()
    torch.testing.assert_close(tensor(doubled), 2 * expected)
    torch.testing.assert_close(mixed, expected)
    assert float(cupy.abs(a_again).sum()) > 0


def test_a_result_outlives_what_made_it(cupy: Any, pattern: SparsePattern) -> None:
    """Its memory is torch's; CuPy works on it on another stream when its last name goes."""
    kernel = spin(cupy)
    a, b = randn(cupy, M, K), randn(cupy, K, N)
    expected = tensor(sddmm.sddmm(pattern, a, b))
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        values = sddmm.sddmm(pattern, a, b)
        kernel((1,), (1,), (np.int64(20_000_000),))
        doubled = values * 2
        del values
        others = [torch.full((5000,), torch.nan, device="cuda") for _ in range(8)]
        stream.synchronize()
    torch.testing.assert_close(tensor(doubled), 2 * expected)
    assert len(others) == 8
