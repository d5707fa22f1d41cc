"""Calls NVIDIA's cusparseSDDMM on CSR without torch's wrapper, with half operands as they are.

https://docs.nvidia.com/cuda/cusparse/#cusparsesddmm. Sums and values are float32 for float16
operands. Preparation makes the descriptors and calls cusparseSDDMM_preprocess once; torch's own
sampled_addmm (method `torch_csr`) does both in every call, and has no half types. The library knows
no heads: their products are calls one after another.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.bench.errors import ExperimentError
from experiments.bench.methods import Run
from experiments.sddmm.case import Case

_POINTER, _ENUM, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64

# Enum values of cusparse.h and library_types.h.
_INDEX_TYPE = {torch.int32: 2, torch.int64: 3}
_BASE_ZERO, _NON_TRANSPOSE, _ALG_DEFAULT = 0, 0, 0
_ORDER_COL, _ORDER_ROW = 1, 2
_DATA_TYPE = {torch.float32: 0, torch.float64: 1, torch.float16: 2}

_SDDMM = (
    _POINTER, _ENUM, _ENUM, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _ENUM, _ENUM, _POINTER
)  # fmt: skip
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cusparseCreate": (_POINTER,),
    "cusparseDestroy": (_POINTER,),
    "cusparseSetStream": (_POINTER, _POINTER),
    "cusparseCreateDnMat": (_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _ENUM, _ENUM),
    "cusparseDestroyDnMat": (_POINTER,),
    "cusparseCreateCsr": (_POINTER, *[_SIZE] * 3, *[_POINTER] * 3, *[_ENUM] * 4),
    "cusparseDestroySpMat": (_POINTER,),
    "cusparseSDDMM_bufferSize": _SDDMM,
    "cusparseSDDMM_preprocess": _SDDMM,
    "cusparseSDDMM": _SDDMM,
}


def refuses(case: Case) -> str | None:
    if not case.device.startswith("cuda"):
        return "cuSPARSE computes on a GPU, not on a CPU"
    if case.a.dtype not in _DATA_TYPE:
        return f"cusparseSDDMM takes float16, float32 and float64 on CSR, not {case.dtype}"
    if case.nnz == 0:
        return "there is nothing to compute: the pattern has 0 nonzeros"
    if loaded_library() is None:
        return "libcusparse is not here: torch has not loaded it, nor does cuda.pathfinder find it"
    return None


def prepare(case: Case) -> Run:
    library = loaded_library()
    if library is None:
        raise ExperimentError("libcusparse is not here")
    # Zeros, not empty: beta = 0 times an unwritten NaN might be NaN.
    values = torch.zeros(case.heads, case.nnz, dtype=case.out_dtype, device=case.device)
    products = [
        _Product(library, head, own) for head, own in zip(case.one_head(), values, strict=True)
    ]
    if case.heads == 1:
        return products[0]

    def run() -> Tensor:
        for product in products:
            product()
        return values

    return run


class Library:
    """Functions of libcusparse that raise what the library says if they fail, and its handles."""

    def __init__(
        self, functions: Any, signatures: Mapping[str, tuple[Any, ...]] = SIGNATURES
    ) -> None:
        self._functions = {name: getattr(functions, name) for name in signatures}
        for name, types in signatures.items():
            self._functions[name].argtypes = types
            self._functions[name].restype = ctypes.c_int
        self._error_string = functions.cusparseGetErrorString
        self._error_string.argtypes, self._error_string.restype = (ctypes.c_int,), ctypes.c_char_p
        self._handles: dict[int, ctypes.c_void_p] = {}

    def call(self, name: str, *arguments: Any) -> None:
        status = self._functions[name](*arguments)
        if status:
            reason = self._error_string(status).decode()
            raise RuntimeError(f"{name}: {reason} (cusparseStatus_t {status})")

    def create(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """Call a function that writes a handle to its first argument; return the handle."""
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle

    def handle(self, device: int) -> ctypes.c_void_p:
        """One for each device, which must be the current one; destroyed when the process ends."""
        if device not in self._handles:
            handle = self._handles[device] = self.create("cusparseCreate")
            weakref.finalize(self, self._functions["cusparseDestroy"], handle)
        return self._handles[device]


class Prepared:
    """What a product of the library needs on the current device: a handle and descriptors."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._handle = library.handle(torch.cuda.current_device())

    def _descriptor(self, kind: str, family: str, *arguments: Any) -> ctypes.c_void_p:
        """A descriptor, destroyed with this product."""
        descriptor = self._library.create(f"cusparseCreate{kind}", *arguments)
        weakref.finalize(self, self._library.call, f"cusparseDestroy{family}", descriptor)
        return descriptor

    def _set_stream(self) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        self._library.call("cusparseSetStream", self._handle, stream)


class _Product(Prepared):
    """One product, ready to run. Every run overwrites and returns `values`."""

    def __init__(self, library: Library, case: Case, values: Tensor) -> None:
        super().__init__(library)
        crow, cols, self._order = _csr(case)
        a, b_t = case.a.contiguous(), case.b.mT.contiguous()
        self._values = values
        kind, index = _DATA_TYPE[a.dtype], _INDEX_TYPE[cols.dtype]
        dense = (
            self._descriptor(
                "DnMat", "DnMat", case.m, case.k, case.k, a.data_ptr(), kind, _ORDER_ROW
            ),
            self._descriptor(
                "DnMat", "DnMat", case.k, case.n, case.k, b_t.data_ptr(), kind, _ORDER_COL
            ),
        )
        out_kind = _DATA_TYPE[case.out_dtype]
        sampled = self._descriptor(
            "Csr", "SpMat", case.m, case.n, case.nnz, crow.data_ptr(), cols.data_ptr(),
            self._values.data_ptr(), index, index, _BASE_ZERO, out_kind,
        )  # fmt: skip
        scalar = ctypes.c_double if case.out_dtype == torch.float64 else ctypes.c_float
        self._alpha, self._beta = scalar(1), scalar(0)
        self._arguments = (
            self._handle, _NON_TRANSPOSE, _NON_TRANSPOSE, ctypes.addressof(self._alpha), *dense,
            ctypes.addressof(self._beta), sampled, out_kind, _ALG_DEFAULT,
        )  # fmt: skip
        self._set_stream()
        needed = ctypes.c_size_t()
        library.call("cusparseSDDMM_bufferSize", *self._arguments, ctypes.byref(needed))
        self._workspace = torch.empty(max(1, needed.value), dtype=torch.uint8, device=case.device)
        library.call("cusparseSDDMM_preprocess", *self._arguments, self._workspace.data_ptr())
        # The descriptors hold addresses only, so the product keeps the tensors alive.
        self._operands = a, b_t, crow, cols

    def __call__(self) -> Tensor:
        self._set_stream()
        self._library.call("cusparseSDDMM", *self._arguments, self._workspace.data_ptr())
        if self._order is None:
            return self._values
        values = torch.empty_like(self._values)
        values[self._order] = self._values
        return values


def _csr(case: Case) -> tuple[Tensor, Tensor, Tensor | None]:
    """Row offsets and columns of one dtype, and the position of each nonzero if COO is sorted."""
    pattern = case.pattern
    if pattern.crow_indices is not None:
        return pattern.crow_indices, pattern.col_indices, None
    crow, cols, order = pattern.by_row
    dtype = torch.promote_types(crow.dtype, cols.dtype)
    return crow.to(dtype), cols.to(dtype), order


@cache
def loaded_library() -> Library | None:
    functions = loaded_functions()
    return None if functions is None else Library(functions)


@cache
def loaded_functions() -> Any:
    """The libcusparse that torch has loaded, else the one that cuda.pathfinder finds, or None."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        _, _, path = line.partition("/")
        if "libcusparse.so" in path.rpartition("/")[2]:
            return ctypes.CDLL(f"/{path}")
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib("cusparse").abs_path)
    except (ImportError, RuntimeError, OSError):
        return None
