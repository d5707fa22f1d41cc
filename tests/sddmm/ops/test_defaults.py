"""Results do not depend on torch's default device and default dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

import sddmm
from sddmm import SparsePattern
from sddmm.testing import assert_close, random_pattern

CSR = random_pattern(4, 5, 6)
COO = random_pattern(4, 5, 6, layout="coo", shuffled=True)
# More nonzeros than positions: its gradients merge duplicates.
CROWDED = SparsePattern.from_coo([1] * 21, [2] * 21, (4, 5))

# torch looks its factory functions up at the first use of a default device: at import, before the
# fixture of all tests replaces torch.empty.
with torch.device("cpu"):
    torch.empty(0)

KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "pattern": lambda _: CSR,
    "shuffled pattern": lambda _: COO,
    "duplicates": lambda _: CROWDED,
    "tuple": lambda _: (COO.row_indices, COO.col_indices, (4, 5)),
    "lists": lambda _: ([3, 0, 1], [1, 2, 4], (4, 5)),
    "numpy": lambda _: (np.array([3, 0]), np.array([1, 2]), (4, 5)),
    "torch CSR": lambda values: torch.sparse_csr_tensor(
        CSR.crow_indices, CSR.col_indices, values, (4, 5), device="cpu"
    ),
    "torch COO": lambda values: torch.sparse_coo_tensor(
        torch.stack([CSR.row_ids, CSR.col_indices]), values, (4, 5), device="cpu", is_coalesced=True
    ),
    "scipy": lambda values: scipy.sparse.csc_array(np.ones((4, 5), np.float32)),
}


@pytest.fixture
def _odd_defaults() -> Iterator[None]:
    """A default device that holds no values, and a default dtype that no test here uses."""
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


def values_of(result: Any) -> torch.Tensor:
    if isinstance(result, torch.Tensor):
        return result if result.layout == torch.strided else result.values()
    return torch.from_numpy(result.data)


@pytest.mark.usefixtures("_odd_defaults")
@pytest.mark.parametrize("kind", KINDS)
def test_operands_on_the_cpu_are_sampled_on_the_cpu(kind: str) -> None:
    generator = torch.Generator("cpu").manual_seed(1)
    a = torch.randn(4, 3, device="cpu", dtype=torch.float32, generator=generator)
    b = torch.randn(3, 5, device="cpu", dtype=torch.float32, generator=generator)
    S = KINDS[kind](torch.ones(6, device="cpu", dtype=torch.float32))
    values = values_of(sddmm.sddmm(S, a, b))
    assert (values.device.type, values.dtype) == ("cpu", torch.float32)
    assert_close(values, S, a, b)
    assert_close(sddmm.plan(S, k=3, dtype=a.dtype).run(a, b), S, a, b)


@pytest.mark.usefixtures("_odd_defaults")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "scipy"])
def test_gradients_are_on_the_cpu_too(kind: str) -> None:
    a = torch.ones(4, 3, device="cpu", dtype=torch.float32, requires_grad=True)
    b = torch.ones(3, 5, device="cpu", dtype=torch.float32, requires_grad=True)
    v = torch.ones(6, device="cpu", dtype=torch.float32, requires_grad=True)
    S = KINDS[kind](v)
    values = values_of(sddmm.sddmm(S, a, b))
    values.sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    assert (a.grad.device.type, a.grad.dtype) == ("cpu", torch.float32)
    assert a.grad.sum() == b.grad.sum() == values.numel() * 3
    if kind in ("torch CSR", "torch COO"):
        assert v.grad is not None
        assert v.grad.tolist() == [3.0] * 6


@pytest.mark.usefixtures("_odd_defaults")
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        ("cpu", torch.float32), ("cpu", torch.float16), ("torch_csr", torch.float32),
        ("reference", torch.float32), ("reference", torch.float16),
    ],
)  # fmt: skip
def test_every_backend_of_the_cpu_names_its_device(backend: str, dtype: torch.dtype) -> None:
    a = torch.randn(4, 3, device="cpu").to(dtype)
    b = torch.randn(3, 5, device="cpu").to(dtype)
    made = sddmm.plan(COO, k=3, dtype=dtype, backend=backend)
    assert_close(made.run(a, b), COO, a, b)


@pytest.mark.usefixtures("_odd_defaults")
def test_half_products_and_attention_are_on_the_cpu_too() -> None:
    """Their sums are float32, in memory of their own."""

    def halves(*shape: int) -> torch.Tensor:
        return torch.ones(shape, device="cpu", dtype=torch.float16, requires_grad=True)

    values, x, q, k, v, bias = (halves(*s) for s in ((6,), (4, 3), (4, 3), (5, 3), (5, 3), (6,)))
    out = sddmm.spmm(COO, x, values=values, transpose=True).sum()
    (out + sddmm.sparse_attention(COO, q, k, v, bias=bias).sum()).backward()
    for leaf in (values, x, q, k, v, bias):
        assert leaf.grad is not None
        assert leaf.grad.device.type == "cpu"
    assert values.grad is not None
    assert values.grad.tolist() == [3.0] * 6
