"""Bad input is refused before anything runs, naming the argument, what came and what is valid."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

import sddmm
from sddmm import SparsePattern
from sddmm.testing import random_pattern
from tests.sddmm.patterns import csr_tensor

S = random_pattern(4, 5, 6)
A, B = torch.randn(4, 3), torch.randn(3, 5)
csr = partial(csr_tensor, S)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((S, A, torch.randn(2, 5)), ValueError, r"inner dimensions differ: a 4x3 .* b 2x5"),
        ((S, A.double(), B), TypeError, r"a is torch.float64 and b is torch.float32"),
        ((S, A, B.int()), TypeError, r"b must be one of float16, bfloat16, float32, float64"),
        ((S, torch.randn(6, 3), B), ValueError, r"S has shape 4x5, so a must have 4 rows .* a 6x3"),
        ((S, A, torch.randn(3, 6)), ValueError, r"b 5 columns; got a 4x3 and b 3x6"),
        ((S, A[0], B), ValueError, r"a must have 2 dimensions, or 3 .*got shape 3"),
        ((S, A[None], B), ValueError, r"a 1x4x3 and b 3x5 must both be 2-D"),
        ((S, A.expand(2, 4, 3), B.expand(3, 3, 5)), ValueError, r"3-D with as many heads"),
        ((S, A.to_sparse(), B), TypeError, r"a must be a dense tensor"),
        ((S, A.to("meta"), B), ValueError, r"a is on meta and S on cpu"),
        ((S, A, B.to("meta")), ValueError, r"b is on meta and S on cpu"),
        ((S, A.tolist(), B), TypeError, r"a must be a torch tensor, .*got <class 'list'>"),
        ((S, A.numpy().astype("U4"), B), TypeError, r"a has dtype <U4"),
        ((csr(torch.ones(6).double()), A, B), TypeError, r"S has values of torch.float64.*scale"),
        (
            (torch.ones(4, 5), A, B),
            TypeError,
            r"S must be .*got a dense torch tensor; .*to_sparse_csr",
        ),
        (
            (torch.ones(4, 5).to_sparse_csc(), A, B),
            TypeError,
            r"sparse_csc; convert it with S.to_sp",
        ),
        (
            (torch.ones(2, 9).long(), A, B),
            TypeError,
            r"edge_index, give the tuple \(edge_index\[0\]",
        ),
        (
            (([0], [0]), A, B),
            TypeError,
            r"a tuple of 2; a COO tuple has two index tensors and a sh",
        ),
        (
            (torch.ones(3, 4, 5).to_sparse_csr(), A, B),
            ValueError,
            r"once for each matrix of a batch",
        ),
        pytest.param(
            (scipy.sparse.coo_array(np.ones(3)), A, B),
            ValueError,
            r"S must be a 2-D sparse matrix or",
            marks=pytest.mark.skipif(
                scipy.sparse.coo_array(np.ones(3)).ndim != 1,
                reason="scipy before 1.13 makes it 2-D",
            ),
        ),
        ((scipy.sparse.dia_array((4, 5)), A, B), TypeError, r"S must be .*of format dia"),
        (("S", A, B), TypeError, r"S must be a torch sparse COO, CSR or BSR tensor"),
        ((torch.zeros(2, 4, 5).to_sparse(), A, B), ValueError, r"S must be a 2-D sparse tensor"),
    ],
)
def test_operands_that_do_not_fit(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sddmm.sddmm(*arguments)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"precision": "fp8"}, ValueError, "precision must be one of ieee, tf32x3, tf32"),
        ({"out_dtype": torch.int32}, TypeError, "out_dtype must be one of float16"),
        ({"alpha": 10**400}, ValueError, "alpha must be a number that a float can hold"),
    ],
)
def test_options_that_are_not_known(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sddmm.sddmm(S, A, B, **options)


def test_reduced_precision_is_for_float32_only() -> None:
    with pytest.raises(ValueError, match="precision='tf32' applies to float32 only"):
        sddmm.sddmm(S, A.double(), B.double(), precision="tf32")
    assert sddmm.sddmm(S, A, B, precision="tf32").shape == (6,)


@pytest.mark.parametrize(
    ("k", "error", "message"),
    [
        ("256", TypeError, "k must be an integer >= 0, got '256'"),
        (2.0, TypeError, "k must be an integer >= 0, got 2.0"),
        (True, TypeError, "k must be an integer"),
        (-1, ValueError, "k must be an integer >= 0, got -1"),
    ],
)
def test_k_that_is_no_size(k: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sddmm.plan(S, k=k, dtype=torch.float32)


def test_an_unknown_or_unwilling_backend_is_told() -> None:
    with pytest.raises(ValueError, match="backend must be one of cuda, cpu, torch_csr, reference"):
        sddmm.plan(S, k=3, dtype=torch.float32, backend="tpu")
    with pytest.raises(ValueError, match=r"torch_csr: .* not torch.float16"):
        sddmm.plan(S, k=3, dtype=torch.float16, backend="torch_csr")
    with pytest.raises(ValueError, match=r"cuda: (torch sees no CUDA|this version has no GPU)"):
        sddmm.plan(S, k=3, dtype=torch.float32, backend="cuda")


@pytest.mark.parametrize(
    ("rows", "cols", "message"),
    [
        ([0, 1, 4], [0, 1, 2], r"row_indices\[2\] is 4; valid are 0..3, as S has shape 4x5"),
        ([0, -1, 2], [0, 1, 2], r"row_indices\[1\] is -1; valid are 0..3"),
        ([0, 1, 2], [0, 5, 2], r"col_indices\[1\] is 5; valid are 0..4"),
        ([0, 1, 2], [-7, 1, 2], r"col_indices\[0\] is -7; valid are 0..4"),
    ],
)
def test_an_index_out_of_range(rows: list[int], cols: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sddmm.sddmm((torch.tensor(rows), torch.tensor(cols), (4, 5)), A, B)


@pytest.mark.parametrize(
    ("crow", "message"),
    [
        ([0, 2, 1, 3, 3], r"crow_indices must never fall, got 2 then 1 at positions 1 and 2"),
        ([1, 2, 2, 3, 3], r"crow_indices must start with 0, got 1"),
        ([0, 1, 2, 2, 2], r"crow_indices must end with nnz = 3, got 2"),
        ([0, 1, 2, 3], r"crow_indices must have m \+ 1 = 5 entries for shape \(4, 5\), got 4"),
    ],
)
def test_crow_indices_that_are_none(crow: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SparsePattern.from_csr(torch.tensor(crow), torch.tensor([0, 1, 2]), (4, 5)).check()


@pytest.mark.parametrize(
    ("rows", "cols", "shape", "error", "message"),
    [
        ([0.5], [0], (4, 5), TypeError, "row_indices must be int32 or int64, got torch.float"),
        ([0], [[0]], (4, 5), ValueError, "col_indices must be 1-D"),
        ([0, 1], [0], (4, 5), ValueError, "one entry per nonzero each, got 2 and 1"),
        ([0], [0], (4,), ValueError, "shape must be two sizes"),
        ([0], [0], (-4, 5), ValueError, "shape must be two sizes >= 0"),
        ([0], torch.tensor([0], dtype=torch.int32), (4, 5), TypeError, "give both the same dtype"),
        ([0], torch.zeros(1, dtype=torch.int64, device="meta"), (4, 5), ValueError, "one device"),
    ],
)
def test_a_pattern_that_cannot_be(
    rows: Any, cols: Any, shape: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        SparsePattern.from_coo(rows, cols, shape)


def test_the_torch_operator_checks_as_the_front_door_does() -> None:
    rows, cols = torch.tensor([0, 9]), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"row_indices\[1\] is 9"):
        torch.ops.sddmm.sddmm(rows, cols, A, B, None)
    with pytest.raises(ValueError, match="inner dimensions differ"):
        torch.ops.sddmm.sddmm(rows, cols, A, B[:2], None)
    with pytest.raises(ValueError, match=r"col_indices\[1\] is 1"):
        torch.ops.sddmm.spmm(rows[:1].repeat(2), cols, torch.ones(2), B[:1], m=2, n=1)
    with pytest.raises(ValueError, match="values must have one entry per nonzero"):
        torch.ops.sddmm.spmm(rows[:1], cols[:1], torch.ones(2), B, m=4, n=3)


def test_sampled_addmm_without_values() -> None:
    with pytest.raises(ValueError, match="S must have values for sampled_addmm"):
        sddmm.sampled_addmm(S, A, B)


def test_what_scipy_cannot_hold_is_refused_not_lost() -> None:
    M = scipy.sparse.csr_array(np.ones((4, 5), np.float32))
    with pytest.raises(ValueError, match="cannot carry gradients"):
        sddmm.sddmm(M, A.clone().requires_grad_(), B)
    with torch.no_grad():
        assert sddmm.sddmm(M, A.clone().requires_grad_(), B).nnz == 20
    with pytest.raises(TypeError, match=r"cannot hold torch.float16; pass out_dtype"):
        sddmm.sddmm(M, A.half(), B.half(), scale=False)
    P = sddmm.sddmm(M, A.half(), B.half(), scale=False, out_dtype=torch.float32)
    assert P.dtype == np.float32


def test_uncoalesced_coo_that_requires_grad_is_refused_not_detached() -> None:
    U = torch.sparse_coo_tensor([[0, 0], [1, 1]], torch.ones(2), (4, 5), requires_grad=True)
    with pytest.raises(ValueError, match="uncoalesced COO tensor that requires grad"):
        sddmm.sddmm(U, A, B)
