"""`gemm()` checks its arguments, chooses a kernel and launches it.

What it has checked and chosen once serves all later calls of the same kind: see `_key`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from gemm_core.ladder.bound import BoundLaunch, BoundLaunches, check_apart, launch_arguments
from gemm_core.ladder.choose import choose
from gemm_core.ladder.spec import (
    ELEMENTS,
    KERNEL_FOLDER,
    PRECISIONS,
    GemmProblem,
    KernelSpec,
)
from gemm_core.ladder.tma_arguments import readable_operands
from gemm_core.ladder.wmma_layout import check_wmma_layout
from gemm_core.runtime.addressing import Rows, fits_32bit_offsets
from gemm_core.runtime.compile import compile_kernel
from gemm_core.runtime.device import device
from gemm_core.runtime.launch import Kernel

_ACCUMULATE = ("fp32", "fp16")
# Other types of tensors may be more than sizes, strides and an address.
_PLAIN = frozenset((Tensor, Parameter))
_PLAIN_OR_NONE = _PLAIN | {type(None)}

Key = tuple[Any, ...] | None
LAUNCHES = BoundLaunches()

is_on_gpu: Callable[[Tensor], bool] = operator.attrgetter("is_cuda")


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
    rows and memory of its own, filled and returned.
    kernel: demand one variant by name (see `kernels`), whose refusal is then a ValueError.
    precision, for float32: the least exact arithmetic to accept, of "ieee", "tf32x3" (three TF32
    products, about float32's accuracy) and "tf32".

    On CUDA tensors it runs on torch's current stream, without waiting, and can be captured in a
    CUDA graph. On CPU tensors it is torch.matmul. Not differentiable.
    """
    key = _key(a, b, out, kernel, accumulate, precision)
    try:
        launch = LAUNCHES.get(key)
    except TypeError:  # an option without a hash, which is no valid one
        launch = None
    if launch is None:
        return _first(key, a, b, out, kernel, accumulate, precision)
    if out is None:
        out = torch.empty(launch.m, launch.n, dtype=launch.dtype, device=launch.device)
        if out.data_ptr() % 16:  # as no allocator of torch's own gives it
            return gemm(a, b, out, kernel=kernel, accumulate=accumulate, precision=precision)
    launch(a.data_ptr(), b.data_ptr(), out.data_ptr())
    return out


def _key(a: Tensor, b: Tensor, out: Tensor | None, *options: str | None) -> Key:
    """Everything on which the checks and the choice of a kernel depend.

    None for arguments that have no such key: they are checked anew in every call.
    """
    if type(a) not in _PLAIN or type(b) not in _PLAIN or type(out) not in _PLAIN_OR_NONE:
        return None
    try:
        if out is None:
            return (*_kind(a), *_kind(b), *options)
        return (*_kind(a), *_kind(b), *_kind(out), *options)
    except RuntimeError:  # a sparse tensor has no strides, a traced one no address
        return None


def _kind(x: Tensor) -> tuple[Any, ...]:
    address = x.data_ptr()
    # torch gives the address 0 to what has no memory. Several kinds of devices count from 0.
    return (
        x.shape, x.stride(), x.dtype, x.is_cuda, x.get_device(), x.is_neg(),
        address % 16 if address else None,
    )  # fmt: skip


def _first(
    key: Key,
    a: Tensor,
    b: Tensor,
    out: Tensor | None,
    kernel: str | None,
    accumulate: str,
    precision: str,
) -> Tensor:
    """`gemm` of arguments whose key has not come before: checks, chooses, launches, and keeps the
    launch for all arguments with this key."""
    _check(a, b, kernel, accumulate, precision)
    m, n = a.shape[0], b.shape[1]
    if out is None:
        out = torch.empty(m, n, dtype=a.dtype, device=a.device)
    else:
        _check_out(out, a, (m, n))
        if key is not None:
            check_apart([Rows.of(x) for x in (a, b, out)], [x.data_ptr() for x in (a, b, out)])
    if not is_on_gpu(a):
        if kernel is not None:
            raise ValueError(f"kernel={kernel!r} needs CUDA tensors, a is on {a.device}")
        return torch.matmul(a.detach(), b.detach(), out=out)
    if out.is_neg():  # torch negates what is read from it
        return out.copy_(_first(None, a, b, None, kernel, accumulate, precision))
    left, right = _row_major(_in_memory(a.detach())), _either_major(_in_memory(b.detach()))
    problem = problem_of(left, right, out, accumulate, precision)
    spec = choose(problem, device(a.device.index), kernel)
    if spec.tma is not None:
        if problem.k == 0 or out.numel() == 0:  # TMA maps no empty tensor
            return out.zero_()
        left, right = readable_operands(problem, left, right)
    loaded = load_kernel(spec, problem, a.device.index)
    used = left, right, out
    launch = BoundLaunch(spec, loaded, launch_arguments(spec, problem, *used), used)
    launch(*(x.data_ptr() for x in used))
    # A copy's launch is not that of the operand, and memory without an address has no alignment.
    if key is not None and all(
        x.data_ptr() == y.data_ptr() != 0 for x, y in zip((a, b, out), used, strict=True)
    ):
        LAUNCHES.add(key, launch)
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


def _in_memory(x: Tensor) -> Tensor:
    """A tensor whose memory holds the numbers of x: torch negates some views only when they are
    read, and some tensors of zeros have no memory."""
    return torch.zeros_like(x, device=x.device) if x._is_zerotensor() else x.resolve_neg()


def _row_major(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 and fits_32bit_offsets(x, x.stride(0)) else x.contiguous()


def _either_major(x: Tensor) -> Tensor:
    return x if 1 in x.stride() and fits_32bit_offsets(x, max(x.stride())) else x.contiguous()


def _pitch(b: Tensor, b_layout: str) -> int:
    return b.stride(0) if b_layout == "kn" else b.stride(1)


def _rows_are_aligned(x: Tensor, pitch: int, multiple: int) -> bool:
    return x.data_ptr() % multiple == 0 and pitch * x.element_size() % multiple == 0


def _check(a: Tensor, b: Tensor, kernel: str | None, accumulate: str, precision: str) -> None:
    for name, operand in (("a", a), ("b", b)):
        if not isinstance(operand, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(operand).__name__}")
        if operand.layout != torch.strided:
            raise TypeError(f"{name} must be dense, got layout {operand.layout}")
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
    if not isinstance(kernel, str | None):
        raise TypeError(f"kernel must be None or one of kernels(), got {kernel!r}")
    if accumulate not in _ACCUMULATE:
        raise ValueError(f"accumulate must be one of {_ACCUMULATE}, got {accumulate!r}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {PRECISIONS}, got {precision!r}")
    if precision != "ieee" and a.dtype != torch.float32:
        raise ValueError(f"precision={precision!r} applies to float32 only, got {a.dtype}")


def _check_out(out: Tensor, a: Tensor, shape: tuple[int, int]) -> None:
    if not isinstance(out, Tensor):
        raise TypeError(f"out must be None or a torch.Tensor, got {type(out).__name__}")
    if out.layout != torch.strided:
        raise TypeError(f"out must be dense, got layout {out.layout}")
    if (
        tuple(out.shape) != shape
        or out.dtype != a.dtype
        or out.device != a.device
        or not _has_separate_rows(out)
    ):
        raise ValueError(
            f"out must be {a.dtype} of shape {shape} with contiguous rows on {a.device}, got "
            f"{out.dtype} {tuple(out.shape)} with strides {out.stride()} on {out.device}"
        )


def _has_separate_rows(out: Tensor) -> bool:
    """Whether the rows of a matrix are contiguous and do not overlap."""
    rows, columns = out.shape
    return (columns <= 1 or out.stride(1) == 1) and (rows <= 1 or out.stride(0) >= columns)
