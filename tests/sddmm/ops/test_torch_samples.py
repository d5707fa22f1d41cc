"""PyTorch's own sample inputs for torch.sparse.sampled_addmm: right, or refused in words."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch

import sddmm

pytest.importorskip("expecttest", reason="torch.testing._internal imports it (.[dev])")


@functools.cache
def operator() -> Any:
    """What torch knows of its operator. Importing it takes seconds, in every process that does."""
    from torch.testing._internal.common_methods_invocations import op_db

    (found,) = (op for op in op_db if op.name == "sparse.sampled_addmm")
    return found


# What torch computes and sddmm refuses, by what its error says.
REFUSED = {
    "complex factor": r"(alpha|beta) must be a real number",
    "complex operand": r"a must be one of float16, bfloat16, float32, float64, got torch.complex",
    "batched S": r"S must be a 2-D sparse tensor",
    "4-D operand": r"a must have 2 dimensions, or 3 with heads first",
}


def samples(dtype: torch.dtype, requires_grad: bool) -> list[tuple[Any, Any, Any, dict[str, Any]]]:
    made = operator().sample_inputs("cpu", dtype, requires_grad=requires_grad)
    return [(sample.input, *sample.args, sample.kwargs) for sample in made]


def leaf(x: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    return x.detach().clone().requires_grad_(requires_grad)


def outcome(function: Any, S: Any, a: Any, b: Any, options: Any, requires_grad: bool) -> Any:
    """The dense result and, if asked, the gradients of S, a and b."""
    S, a, b = (leaf(x, requires_grad) for x in (S, a, b))
    result = function(S, a, b, **options)
    if not requires_grad:
        return [result]
    result.values().square().sum().backward()
    gradients = [S.grad, a.grad, b.grad]
    return [result.detach(), *(None if g is None else g.to_dense() for g in gradients)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_real_samples_are_as_torch_computes_them(dtype: torch.dtype, requires_grad: bool) -> None:
    cases = samples(dtype, requires_grad)
    for case in cases:
        got = outcome(sddmm.sampled_addmm, *case, requires_grad)
        expected = outcome(torch.sparse.sampled_addmm, *case, requires_grad)
        assert got[0].layout == torch.sparse_csr
        for x, y in zip(got, expected, strict=True):
            torch.testing.assert_close(x.to_dense(), y.to_dense())
    assert len(cases) == 8


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_samples_are_refused(dtype: torch.dtype) -> None:
    """All of torch's have complex factors; their operands are refused with real ones, too."""
    cases = samples(dtype, False)
    for S, a, b, options in cases:
        torch.sparse.sampled_addmm(S, a, b, **options)
        with pytest.raises(TypeError, match=REFUSED["complex factor"]):
            sddmm.sampled_addmm(S, a, b, **options)
        with pytest.raises(TypeError, match=REFUSED["complex operand"]):
            sddmm.sampled_addmm(S, a, b)
    assert len(cases) == 8


def test_batches_of_the_samples_are_refused_where_s_is_one() -> None:
    """torch takes leading dimensions of S; of a and b alone they are heads, with bare values."""
    right = refused = 0
    for (S, a, b, options), batch_s, batch in itertools.product(
        samples(torch.float64, False), ((), (2,), (2, 3)), ((), (2,), (2, 3))
    ):
        batched = [S.to_dense().expand(*batch_s, *S.shape).to_sparse_csr() if batch_s else S]
        batched += [x.expand(*batch, *x.shape) for x in (a, b)]
        if batch_s or len(batch) == 2:
            with pytest.raises(
                ValueError, match=REFUSED["batched S" if batch_s else "4-D operand"]
            ):
                sddmm.sampled_addmm(*batched, **options)
            refused += 1
            continue
        got = sddmm.sampled_addmm(*batched, **options)
        one = torch.sparse.sampled_addmm(S, a, b, **options).values()
        torch.testing.assert_close(got if batch else got.values(), one.expand(*batch, -1))
        right += 1
    assert (right, refused) == (16, 56)


def test_a_csr_tensor_whose_row_starts_are_no_memory_of_its_own_is_refused() -> None:
    """torch.empty of this layout leaves crow_indices unwritten, of zero-sized matrices too."""
    for m, n in ((5, 0), (5, 5)):
        S = torch.sparse_csr_tensor(
            torch.tensor([7, 1, 9, 2, 0, 3]), torch.empty(0, dtype=torch.int64),
            torch.empty(0), (m, n), check_invariants=False,
        )  # fmt: skip
        with pytest.raises(ValueError, match="crow_indices must start with 0, got 7"):
            sddmm.sampled_addmm(S, torch.ones(m, 2), torch.ones(2, n))
