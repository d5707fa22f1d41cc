"""Dense operands: conversion to tensors, and checks that they fit each other and S."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from sddmm.cupy_arrays import from_cupy, is_cupy, to_cupy, to_tensor
from sddmm.dtypes import DTYPES, HALF_DTYPES, dtype_names
from sddmm.problem import SddmmProblem, make_problem
from sddmm.sparse.pattern import SparsePattern

T = TypeVar("T")
# The calls of one kind that are remembered.
_MOST_CALLS = 1024


def remember(known: dict[tuple[object, ...], T], metadata: tuple[object, ...], found: T) -> T:
    """`found`, kept for calls whose pattern and operands have equal metadata: they need no second
    check. A full look-up is emptied before."""
    if len(known) >= _MOST_CALLS:
        known.clear()
    known[metadata] = found
    return found


def as_operands(a: Any, b: Any) -> tuple[Tensor, Tensor, Callable[[Tensor], Any]]:
    """a and b as tensors, and the function that converts a result to their kind."""
    if isinstance(a, Tensor) and isinstance(b, Tensor) and not (a.is_nested or b.is_nested):
        return a, b, identity
    tensors, to_output = as_tensors({"a": a, "b": b})
    return tensors["a"], tensors["b"], to_output


def as_tensors(operands: dict[str, Any]) -> tuple[dict[str, Tensor], Callable[[Tensor], Any]]:
    """Dense operands by name as tensors, and the function that converts a result to their kind.

    The result is a numpy or a CuPy array if all operands are, else a tensor. Beside a tensor that
    requires grad arrays are copied, as the backward reads them later.
    """
    for x in operands.values():  # a loop is quicker than all(), and every call of spmm runs it
        if not isinstance(x, Tensor) or x.is_nested:
            break
    else:
        return operands, identity
    tensors = {name: _operand(x, name) for name, x in operands.items()}
    if any(isinstance(x, Tensor) for x in operands.values()) and needs_grad(*tensors.values()):
        for name, x in operands.items():
            tensors[name] = tensors[name] if isinstance(x, Tensor) else tensors[name].clone()
    return tensors, _output_kind(list(operands.values()))


def _output_kind(operands: list[Any]) -> Callable[[Tensor], Any]:
    if all(isinstance(x, np.ndarray) for x in operands):
        return to_numpy
    # torch.compile follows no question about the module of a Parameter's class.
    cupy = [not isinstance(x, Tensor) and is_cupy(x) for x in operands]
    if all(cupy):
        return to_cupy
    return to_tensor if any(cupy) else identity


def from_numpy(array: Any, name: str) -> Tensor:
    """The tensor over an array's memory, or a copy's: torch shares no negative strides and no
    read-only arrays."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be lost; fill it first")
    if not array.dtype.isnative:
        raise TypeError(
            f"{name} has dtype {array.dtype}, not of this machine's byte order; "
            f"convert it with astype(dtype.newbyteorder('='))"
        )
    strides = array.strides
    if any(x < 0 or x % array.itemsize for x in strides) or not array.flags.writeable:
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise TypeError(f"{name} has dtype {array.dtype}, which torch does not know") from None


def named_values(own: Tensor | None, values: Any, entries: str = "nonzero") -> tuple[str, Any]:
    """`values`, or S's own if None, after the name that errors give them.

    entries: what has a value each, in words.
    """
    if values is not None:
        return "values", values
    if own is None:
        raise ValueError(
            f"S is a pattern without values; give values=, one for each {entries}: "
            f"(nnz,) or (h, nnz)"
        )
    return "S's values", own


def needs_grad(*operands: Tensor | None) -> bool:
    """Whether autograd will ask for a gradient of any of them."""
    if torch.is_grad_enabled():
        for x in operands:  # a loop is quicker than any(), and every call runs it
            if x is not None and x.requires_grad:
                return True
    return False


def transpose_if_csc(
    a: Tensor, b: Tensor, pattern: SparsePattern, transposed: bool
) -> tuple[Tensor, Tensor]:
    """The operands whose product the pattern samples.

    The pattern of a CSC matrix is that of S's transpose: (A B)^T = B^T A^T.
    """
    if not transposed:
        return a, b
    check_operands(a, b)
    check_fit(a, b, (pattern.shape[1], pattern.shape[0]), pattern.device)
    return b.mT, a.mT


def real_number(value: Any, name: str) -> float:
    """A factor such as alpha as a float: any real number, or a 0-dim tensor without gradient."""
    if type(value) is float:
        return value
    if isinstance(value, Tensor):
        if value.dim() != 0 or value.dtype.is_complex:
            raise TypeError(
                f"{name} must be a real number, got a tensor of {value.dtype} and "
                f"shape {shape_text(value)}"
            )
        if needs_grad(value) or has_tangent(value):
            raise ValueError(
                f"{name} is a tensor that requires grad, and would get none; multiply a, b or the "
                f"result by it instead"
            )
        return float(value)
    if isinstance(value, Real | torch.SymFloat | torch.SymInt):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{name} must be a number that a float can hold") from None
    raise TypeError(f"{name} must be a real number, got {value!r}")


def has_tangent(x: Tensor) -> bool:
    """Whether forward-mode AD follows x now."""
    level = forward_ad._current_level
    return level >= 0 and forward_ad.unpack_dual(x).tangent is not None


def check_dense(
    name: str,
    x: Tensor,
    device: torch.device | None = None,
    no_complex: str = "complex products are not supported",
) -> None:
    """Raise unless x is a dense tensor of a supported dtype, and on `device`, if one is given.

    no_complex: why there are no results of complex numbers.
    """
    if x.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {x.layout}")
    if x.dtype not in DTYPES:
        call = name if name.isidentifier() else "with "  # "S's values" are no expression
        advice = f"convert it, for example {call}.float()"
        if x.is_quantized:
            advice = f"pass {name}.dequantize()"
        if x.dtype.is_complex:
            advice = no_complex
        raise TypeError(f"{name} must be one of {dtype_names(DTYPES)}, got {x.dtype}; {advice}")
    if device is not None:
        check_device(name, x, device)


def check_device(name: str, x: Tensor, device: torch.device) -> None:
    """Raise ValueError unless x is on S's device."""
    if x.device != device:
        is_on = "are on" if name.endswith("values") else "is on"
        raise ValueError(
            f"{name} {is_on} {x.device} and S on {device}; move one: they must be on the same "
            f"device"
        )


def check_dimensions(name: str, x: Tensor, of_vector: str = "") -> None:
    """Raise ValueError unless x has 2 dimensions, or 3 with heads. of_vector: how to give one."""
    if x.dim() not in (2, 3):
        of_more = f"; flatten all before the last two: {name}.flatten(0, -3)"
        advice = of_more if x.dim() > 3 else of_vector if x.dim() == 1 else ""
        raise ValueError(
            f"{name} must have 2 dimensions, or 3 with heads first, got shape {shape_text(x)}"
            f"{advice}"
        )


def check_per_nonzero(
    name: str, x: Tensor, nnz: int, operand_name: str = "", operand: Tensor | None = None
) -> None:
    """Raise ValueError unless x is (nnz,), or (h, nnz) with as many heads as the dense operand, if
    there is one."""
    heads = tuple(x.shape[:-1] if operand is None else operand.shape[:-2])
    if x.dim() in (1, 2) and tuple(x.shape) in ((nnz,), (*heads, nnz)):
        return
    allowed = f"({nnz},)"
    if operand is None:
        allowed += f" or (h, {nnz})"
    else:
        allowed += f" or ({heads[0]}, {nnz})" if heads else ""
        allowed += f" beside {operand_name} {shape_text(operand)}"
    raise ValueError(
        f"{name} must have one entry per nonzero, {allowed}; got shape {shape_text(x)}"
    )


def check_scipy(dtype: torch.dtype | None, advice: str, *operands: Tensor) -> None:
    """Raise if S is a scipy matrix that cannot hold a result of this dtype, or the gradients of
    these operands. dtype: None if the result has heads, and so is none of scipy's."""
    if dtype in HALF_DTYPES:
        raise TypeError(f"S is a scipy or cupyx matrix, which cannot hold {dtype}; {advice}")
    if needs_grad(*operands):
        raise ValueError(
            "S is a scipy or cupyx matrix, which cannot carry gradients, and an operand requires "
            "grad; give S as a torch sparse tensor or a SparsePattern, or call under torch.no_grad"
        )


def check_operands(a: Tensor, b: Tensor, alike: bool = True) -> None:
    """Raise unless a and b are dense and fit each other as ([h,] m, k) and ([h,] k, n).

    alike: whether their dtypes must agree now; autocast casts them to one dtype later.
    """
    no_complex = "complex products are not supported, torch.sparse.sampled_addmm computes them"
    for name, operand in (("a", a), ("b", b)):
        check_dense(name, operand, no_complex=no_complex)
        check_dimensions(name, operand)
    if alike and a.dtype != b.dtype:
        raise TypeError(f"a is {a.dtype} and b is {b.dtype}; convert one: their dtypes must agree")
    if a.dim() != b.dim() or (a.dim() == 3 and a.shape[0] != b.shape[0]):
        raise ValueError(
            f"a {shape_text(a)} and b {shape_text(b)} must both be 2-D, or both 3-D with as many "
            f"heads"
        )
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"inner dimensions differ: a {shape_text(a)} has k = {a.shape[-1]}, "
            f"b {shape_text(b)} has k = {b.shape[-2]}; a is (m, k), b is (k, n)"
        )


def check_fit(a: Tensor, b: Tensor, shape: tuple[int, int], device: torch.device) -> None:
    """Raise ValueError unless a @ b has S's shape, on S's device."""
    m, n = shape
    if a.shape[-2] != m or b.shape[-1] != n:
        raise ValueError(
            f"S has shape {m}x{n}, so a must have {m} rows and b {n} columns; "
            f"got a {shape_text(a)} and b {shape_text(b)}"
        )
    check_device("a", a, device)
    check_device("b", b, device)


def problem_of(
    pattern: SparsePattern,
    a: Tensor,
    b: Tensor,
    out_dtype: Any = None,
    precision: Any = "ieee",
    scaled: bool = False,
) -> SddmmProblem:
    """The problem of sampling a @ b with `pattern`. Raises for operands that do not fit it."""
    check_operands(a, b)
    return problem_of_checked(pattern, a, b, out_dtype, precision, scaled)


def problem_of_checked(
    pattern: SparsePattern,
    a: Tensor,
    b: Tensor,
    out_dtype: Any,
    precision: Any,
    scaled: bool,
) -> SddmmProblem:
    """As `problem_of`, of operands that are known to fit each other."""
    check_fit(a, b, pattern.shape, pattern.device)
    heads = a.shape[0] if a.dim() == 3 else None
    return make_problem(
        pattern, k=a.shape[-1], dtype=a.dtype, heads=heads, out_dtype=out_dtype,
        precision=precision, scaled=scaled,
    )  # fmt: skip


def check_values(values: Tensor, problem: SddmmProblem) -> None:
    """Raise unless S's values are (nnz,), of the operands' dtype and device."""
    if values.dtype != problem.dtype:
        raise TypeError(
            f"S has values of {values.dtype} and a, b are {problem.dtype}; "
            f"convert one, or pass scale=False to leave S's values out"
        )
    if values.shape != (problem.nnz,):
        raise ValueError(
            f"S must have one value per nonzero, ({problem.nnz},), got shape {shape_text(values)}"
        )
    if values.device != problem.device:
        raise ValueError(f"S has values on {values.device} and indices on {problem.device}")


def _operand(operand: Any, name: str) -> Tensor:
    if isinstance(operand, Tensor):
        if operand.is_nested:
            raise TypeError(
                f"{name} must be a dense tensor, got a nested one; call once for each of its "
                f"tensors, or pad them with torch.nested.to_padded_tensor"
            )
        return operand
    if isinstance(operand, np.ndarray):
        return from_numpy(operand, name)
    if is_cupy(operand):
        return from_cupy(operand, name)
    if hasattr(operand, "__dlpack__"):
        return torch.utils.dlpack.from_dlpack(operand)
    raise TypeError(f"{name} must be a torch tensor, a numpy or a cupy array, got {type(operand)}")


def to_numpy(values: Tensor) -> Any:
    return values.detach().numpy()


def identity(values: Any) -> Any:
    return values


def shape_text(tensor: Tensor) -> str:
    """The sizes as in 4x5."""
    return "x".join(str(size) for size in tensor.shape) or "()"
