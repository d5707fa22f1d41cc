"""`gemm()` checks its arguments, chooses a kernel and launches it."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from gemm_core.ladder.choose import choose
from gemm_core.ladder.spec import (
    ELEMENTS,
    KERNEL_FOLDER,
    PRECISIONS,
    GemmProblem,
    KernelSpec,
)
from gemm_core.ladder.tma_arguments import readable_operands, tma_arguments
from gemm_core.ladder.wmma_layout import check_wmma_layout
from gemm_core.runtime.addressing import fits_32bit_offsets
from gemm_core.runtime.compile import compile_kernel
from gemm_core.runtime.device import device
from gemm_core.runtime.launch import Kernel

_ACCUMULATE = ("fp32", "fp16")


def gemm(
    a: Tensor,
    b: Tensor,
    out: Tensor | None = None,
    *,
    kernel: str | None = None,
    accumulate: str = "fp32",
    precision: str = "ieee",
) -> Tensor:
    """a @ b by the kernels of this package.

    a: (m, k), b: (k, n), of one dtype: float16, bfloat16 or float32; any sizes, 0 included, and any
    strides. An operand whose rows are not contiguous is copied; b may be stored as (k, n) or as
    (n, k) rows, the transpose of a contiguous tensor. out: (m, n) of the same dtype with contiguous
    rows, filled and returned.
    kernel: demand one variant by name (see `kernels`), whose refusal is then a ValueError.
    precision, for float32: the least exact arithmetic to accept, of "ieee", "tf32x3" (three TF32
    products, about float32's accuracy) and "tf32".

    On CUDA tensors it runs on torch's current stream, without waiting, and can be captured in a
    CUDA graph. On CPU tensors it is torch.matmul. Not differentiable.
    """
    _check(a, b, accumulate, precision)
    m, n = a.shape[0], b.shape[1]
    if out is None:
        out = torch.empty(m, n, dtype=a.dtype, device=a.device)
    _check_out(out, a, (m, n))
    if not a.is_cuda:
        if kernel is not None:
            raise ValueError(f"kernel={kernel!r} needs CUDA tensors, a is on {a.device}")
        return torch.matmul(a.detach(), b.detach(), out=out)
    # torch negates some views only when they are read.
    a, b = _row_major(a.detach().resolve_neg()), _either_major(b.detach().resolve_neg())
    problem = problem_of(a, b, out, accumulate, precision)
    spec = choose(problem, device(a.device.index), kernel)
    launch(spec, problem, a, b, out)
    return out


def problem_of(a: Tensor, b: Tensor, out: Tensor, accumulate: str, precision: str) -> GemmProblem:
    """The problem of operands that already have a layout which the kernels read."""
    b_layout = "kn" if b.stride(1) == 1 else "nk"
    return GemmProblem(
        m=a.shape[0],
        n=b.shape[1],
        k=a.shape[1],
        dtype=a.dtype,
        out_dtype=out.dtype,
        b_layout=b_layout,
        aligned_a=_rows_are_aligned(a, a.stride(0), 16),
        aligned_b=_rows_are_aligned(b, _pitch(b, b_layout), 16),
        c_vec2_aligned=_rows_are_aligned(out, out.stride(0), 2 * out.element_size()),
        aligned_c=_rows_are_aligned(out, out.stride(0), 16),
        accumulate=accumulate,
        precision=precision,
        fits_32bit_offsets=fits_32bit_offsets(a, a.stride(0))
        and fits_32bit_offsets(b, _pitch(b, b_layout)),
    )


def launch(spec: KernelSpec, problem: GemmProblem, a: Tensor, b: Tensor, out: Tensor) -> None:
    """Launch a kernel on operands of a problem that it serves."""
    if a.device.index != torch.cuda.current_device():
        with torch.cuda.device(a.device):  # the driver launches in the current context
            return launch(spec, problem, a, b, out)
    if spec.tma is not None:
        if problem.k == 0 or out.numel() == 0:  # TMA maps no empty tensor
            out.zero_()
            return None
        a, b = readable_operands(problem, a, b)
    load_kernel(spec, problem, a.device.index)(*launch_arguments(spec, problem, a, b, out))


def launch_arguments(
    spec: KernelSpec, problem: GemmProblem, a: Tensor, b: Tensor, out: Tensor
) -> tuple[Any, ...]:
    """The arguments of a loaded kernel's call: the length of the grid, then its parameters."""
    blocks = spec.grid(problem, device(a.device.index))
    if spec.tma is not None:
        return (blocks, *tma_arguments(spec, problem, a, b, out))
    return (
        blocks,
        a.data_ptr(),
        b.data_ptr(),
        out.data_ptr(),
        problem.m,
        problem.n,
        problem.k,
        a.stride(0),
        _pitch(b, problem.b_layout),
        out.stride(0),
    )


@functools.lru_cache(maxsize=4096)
def load_kernel(spec: KernelSpec, problem: GemmProblem, device_index: int) -> Kernel:
    """The kernel of a spec, specialised to the problem's dtype and layout; compiled once."""
    return _load(spec, tuple(spec.macros(problem).items()), device_index)


@functools.cache
def _load(spec: KernelSpec, macros: tuple[tuple[str, str], ...], device_index: int) -> Kernel:
    if spec.source.startswith("wmma"):
        check_wmma_layout(device_index)
    cubin = compile_kernel(KERNEL_FOLDER / spec.source, dict(macros), device(device_index).arch)
    return Kernel(
        spec.name, cubin.code, "gemm", spec.parameters, spec.threads, spec.shared_bytes,
        device_index,
    )  # fmt: skip


def _row_major(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 and fits_32bit_offsets(x, x.stride(0)) else x.contiguous()


def _either_major(x: Tensor) -> Tensor:
    return x if 1 in x.stride() and fits_32bit_offsets(x, max(x.stride())) else x.contiguous()


def _pitch(b: Tensor, b_layout: str) -> int:
    return b.stride(0) if b_layout == "kn" else b.stride(1)


def _rows_are_aligned(x: Tensor, pitch: int, multiple: int) -> bool:
    return x.data_ptr() % multiple == 0 and pitch * x.element_size() % multiple == 0


def _check(a: Tensor, b: Tensor, accumulate: str, precision: str) -> None:
    for name, operand in (("a", a), ("b", b)):
        if operand.dtype not in ELEMENTS:
            raise TypeError(f"{name} must be float16, bfloat16 or float32, got {operand.dtype}")
        if operand.dim() != 2:
            raise ValueError(f"{name} must have 2 dimensions, got shape {tuple(operand.shape)}")
    if a.dtype != b.dtype:
        raise TypeError(f"a is {a.dtype} and b is {b.dtype}; convert one: their dtypes must agree")
    if a.device != b.device:
        raise ValueError(f"a is on {a.device} and b on {b.device}; move one")
    if a.shape[1] != b.shape[0]:
        raise ValueError(
            f"inner dimensions differ: a {tuple(a.shape)} has k = {a.shape[1]}, "
            f"b {tuple(b.shape)} has k = {b.shape[0]}"
        )
    if max(*a.shape, *b.shape) >= 2**31:
        raise ValueError(f"sizes must be below 2^31, got a {tuple(a.shape)}, b {tuple(b.shape)}")
    if accumulate not in _ACCUMULATE:
        raise ValueError(f"accumulate must be one of {_ACCUMULATE}, got {accumulate!r}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {PRECISIONS}, got {precision!r}")
    if precision != "ieee" and a.dtype != torch.float32:
        raise ValueError(f"precision={precision!r} applies to float32 only, got {a.dtype}")


def _check_out(out: Tensor, a: Tensor, shape: tuple[int, int]) -> None:
    rows_contiguous = out.dim() == 2 and (out.stride(1) == 1 or out.shape[1] <= 1)
    if (
        tuple(out.shape) != shape
        or out.dtype != a.dtype
        or out.device != a.device
        or not rows_contiguous
    ):
        raise ValueError(
            f"out must be {a.dtype} of shape {shape} with contiguous rows on {a.device}, got "
            f"{out.dtype} {tuple(out.shape)} with strides {out.stride()} on {out.device}"
        )
