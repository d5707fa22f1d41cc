"""`gemm` multiplies CPU tensors by torch and refuses the same arguments on every device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gemm_core import gemm, kernels
from gemm_core.ladder.api import problem_of

A, B, SQUARE = torch.randn(6, 4), torch.randn(4, 5), torch.randn(8, 8)


def test_cpu_tensors_are_multiplied_by_torch() -> None:
    torch.testing.assert_close(gemm(A, B), A @ B)
    out = torch.empty(6, 5)
    assert gemm(A, B, out=out) is out
    torch.testing.assert_close(out, A @ B)
    assert gemm(A[:, :0], B[:0]).eq(0).all()


# Arguments and options that no product has, and how they are refused.
WRONG: list[tuple[Any, Any, type[Exception], str]] = [
    ((A, torch.randn(3, 5)), {}, ValueError, r"inner dimensions differ: a \(6, 4\) has k = 4"),
    ((A, B.half()), {}, TypeError, "a is torch.float32 and b is torch.float16"),
    ((A.double(), B.double()), {}, TypeError, "a must be float16, bfloat16 or float32"),
    ((A[0], B), {}, ValueError, r"a must have 2 dimensions, got shape \(4,\)"),
    ((A, B.to("meta")), {}, ValueError, "a is on cpu and b on meta"),
    ((A, B), {"precision": "fp8"}, ValueError, "precision must be one of"),
    ((A, B), {"accumulate": "fp64"}, ValueError, "accumulate must be one of"),
    ((A.half(), B.half()), {"precision": "tf32"}, ValueError, "applies to float32 only"),
    ((A, B), {"out": torch.empty(5, 6)}, ValueError, r"out must be torch.float32 of shape"),
    ((A, B), {"out": torch.empty(5, 6).T}, ValueError, "with contiguous rows"),
    ((A, B), {"out": torch.empty(6, 5).half()}, ValueError, "got torch.float16"),
    ((A.numpy(), B), {}, TypeError, "a must be a torch.Tensor, got ndarray"),
    ((A, B.to_sparse()), {}, TypeError, "b must be dense, got layout torch.sparse_coo"),
    ((A, B), {"out": A.numpy()}, TypeError, "out must be None or a torch.Tensor, got ndarray"),
    ((A, B), {"out": torch.empty(5).expand(6, 5)}, ValueError, r"with strides \(0, 1\)"),
    ((A, B), {"kernel": ["sgemm_naive"]}, TypeError, "kernel must be None or one of kernels"),
    ((A, B), {"accumulate": ["fp32"]}, ValueError, "accumulate must be one of"),
    ((A, B), {"out": torch.empty(6, 5).to_sparse()}, TypeError, "out must be dense, got layout"),
    ((SQUARE[:4, :4], B), {"out": SQUARE[3:7, 3:8]}, ValueError, "out shares memory with a; give"),
    ((A, SQUARE[:4]), {"out": SQUARE[2:]}, ValueError, "out shares memory with b"),
    (
        (A, SQUARE.T[:4]),
        {"out": SQUARE.view(-1)[:48].view(6, 8)},
        ValueError,
        "shares memory with b",
    ),
]


@pytest.mark.parametrize(("arguments", "options", "error", "message"), WRONG)
def test_what_does_not_fit_is_refused(
    arguments: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gemm(*arguments, **options)


def test_out_may_lie_between_the_rows_of_an_operand() -> None:
    memory = torch.randn(6, 9)
    expected = memory[:, :4] @ B
    assert torch.equal(gemm(memory[:, :4], B, out=memory[:, 4:]), expected)


def test_no_kernel_computes_on_the_cpu() -> None:
    with pytest.raises(ValueError, match="kernel='sgemm_naive' needs CUDA tensors, a is on cpu"):
        gemm(A, B, kernel="sgemm_naive")


def test_the_layout_of_a_problem_is_read_off_its_operands() -> None:
    a, out = torch.empty(32, 24, dtype=torch.float16), torch.empty(32, 16, dtype=torch.float16)
    b = torch.empty(24, 16, dtype=torch.float16)
    plain = problem_of(a, b, out, "fp32", "ieee")
    assert (plain.b_layout, plain.aligned_a, plain.aligned_b, plain.c_vec2_aligned) == (
        "kn",
        1,
        1,
        1,
    )
    assert problem_of(a, torch.empty(16, 24).half().T, out, "fp32", "ieee").b_layout == "nk"
    shifted = torch.empty(32 * 24 + 1, dtype=torch.float16)[1:].view(32, 24)
    assert not problem_of(shifted, b, out, "fp32", "ieee").aligned_a
    odd = torch.empty(24, 17, dtype=torch.float16)[:, :16]
    assert not problem_of(a, odd, out, "fp32", "ieee").aligned_b
    assert not problem_of(a, b, torch.empty(32, 17).half()[:, :16], "fp32", "ieee").c_vec2_aligned


def test_rows_far_apart_are_a_problem_of_their_own() -> None:
    """256 rows of 2^24 bytes span more than 32 bits can address."""
    b, out = torch.empty(8, 8).half(), torch.empty(2, 8).half()
    for columns, near in ((2**23 - 8, True), (2**23, False)):
        far = torch.empty(2, columns, dtype=torch.float16)[:, :8]
        assert problem_of(far, b, out, "fp32", "ieee").fits_32bit_offsets == near
        assert problem_of(out, far.T, out, "fp32", "ieee").fits_32bit_offsets == near


def test_kernels_are_named_simplest_first() -> None:
    assert kernels()[0] == "sgemm_naive"
    assert len(set(kernels())) == len(kernels())
