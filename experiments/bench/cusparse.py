"""NVIDIA's libcusparse without torch's wrapper: its functions, its handles and its descriptors.

https://docs.nvidia.com/cuda/cusparse/#generic-apis. The products of a sparse and dense matrices,
cusparseSDDMM and cusparseSpMM, have the same arguments.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from experiments.bench.errors import ExperimentError

_POINTER, _ENUM, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64

# Enum values of cusparse.h and library_types.h.
NON_TRANSPOSE, TRANSPOSE = 0, 1
DATA_TYPE = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 14}
_INDEX_TYPE = {torch.int32: 2, torch.int64: 3}
_BASE_ZERO = 0
_ORDER_COL, _ORDER_ROW = 1, 2

_PRODUCT = (
    _POINTER, _ENUM, _ENUM, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _ENUM, _ENUM, _POINTER
)  # fmt: skip
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cusparseCreate": (_POINTER,),
    "cusparseDestroy": (_POINTER,),
    "cusparseSetStream": (_POINTER, _POINTER),
    "cusparseCreateDnMat": (_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _ENUM, _ENUM),
    "cusparseDnMatSetStridedBatch": (_POINTER, _ENUM, _SIZE),
    "cusparseDestroyDnMat": (_POINTER,),
    "cusparseCreateCsr": (_POINTER, *[_SIZE] * 3, *[_POINTER] * 3, *[_ENUM] * 4),
    "cusparseCsrSetStridedBatch": (_POINTER, _ENUM, _SIZE, _SIZE),
    "cusparseDestroySpMat": (_POINTER,),
}


class OnDevice(Protocol):
    """The part of a case that a refusal depends on."""

    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nnz(self) -> int: ...


def refuses(
    case: OnDevice, product: str, dtypes: Collection[torch.dtype] = frozenset(DATA_TYPE)
) -> str | None:
    """None, or the reason why the product, which takes these dtypes, does not serve the case."""
    if not case.device.startswith("cuda"):
        return "cuSPARSE computes on a GPU, not on a CPU"
    if getattr(torch, case.dtype) not in dtypes:
        *names, last = (str(dtype).removeprefix("torch.") for dtype in dtypes)
        return f"cusparse{product} takes {', '.join(names)} and {last} on CSR, not {case.dtype}"
    if case.nnz == 0:
        return "there is nothing to compute: the pattern has 0 nonzeros"
    if loaded_library(product) is None:
        return "libcusparse is not here: torch has not loaded it, nor does cuda.pathfinder find it"
    return None


def signatures(product: str) -> dict[str, tuple[Any, ...]]:
    """The types of the arguments of the functions that a product needs, SDDMM or SpMM."""
    steps = ("_bufferSize", "_preprocess", "")
    return _SIGNATURES | {f"cusparse{product}{step}": _PRODUCT for step in steps}


class Library:
    """The functions of libcusparse for one product, and its handles.

    A function that fails raises RuntimeError with what the library says.
    """

    def __init__(self, functions: Any, product: str) -> None:
        self.product = product
        self._functions: dict[str, Any] = {}
        for name, types in signatures(product).items():
            function = self._functions[name] = getattr(functions, name)
            function.argtypes, function.restype = types, ctypes.c_int
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
    """A product on the current device: a handle, descriptors, and the tensors that they point to.

    product: SDDMM or SpMM. dtype: that of the scalars alpha = 1 and beta = 0.
    """

    def __init__(self, product: str, dtype: torch.dtype) -> None:
        library = loaded_library(product)
        if library is None:
            raise ExperimentError("libcusparse is not here")
        self._library = library
        self._handle = library.handle(torch.cuda.current_device())
        scalar = ctypes.c_double if dtype == torch.float64 else ctypes.c_float
        self._scalars = scalar(1), scalar(0)
        self._tensors: list[Tensor] = []  # descriptors hold addresses only

    def _dense(self, x: Tensor, transposed: bool = False) -> ctypes.c_void_p:
        """The descriptor of a contiguous x, or of its transpose, which is x read by columns."""
        rows, columns = x.mT.shape if transposed else x.shape
        order, kind = _ORDER_COL if transposed else _ORDER_ROW, DATA_TYPE[x.dtype]
        self._tensors.append(x)
        return self._descriptor(
            "DnMat", "DnMat", rows, columns, x.shape[1], x.data_ptr(), kind, order
        )

    def _csr(
        self, shape: tuple[int, int], nnz: int, indptr: Tensor, indices: Tensor, values: Tensor
    ) -> ctypes.c_void_p:
        """The descriptor of a CSR matrix; indptr and indices have one dtype."""
        index = _INDEX_TYPE[indices.dtype]
        self._tensors += [indptr, indices, values]
        return self._descriptor(
            "Csr", "SpMat", *shape, nnz, indptr.data_ptr(), indices.data_ptr(),
            values.data_ptr(), index, index, _BASE_ZERO, DATA_TYPE[values.dtype],
        )  # fmt: skip

    def _descriptor(self, kind: str, family: str, *arguments: Any) -> ctypes.c_void_p:
        """A descriptor, destroyed with this product."""
        descriptor = self._library.create(f"cusparseCreate{kind}", *arguments)
        weakref.finalize(self, self._library.call, f"cusparseDestroy{family}", descriptor)
        return descriptor

    def _preprocess(
        self, operation: int, matrices: tuple[Any, Any, Any], compute: int, algorithm: int,
    ) -> tuple[Any, ...]:  # fmt: skip
        """The arguments of the product's call, preprocessed, with its workspace last.

        operation: of the first matrix. matrices: the two factors and the result.
        """
        alpha, beta = (ctypes.addressof(scalar) for scalar in self._scalars)
        *factors, result = matrices
        arguments = (
            self._handle, operation, NON_TRANSPOSE, alpha, *factors, beta, result, compute,
            algorithm,
        )  # fmt: skip
        needed, name = ctypes.c_size_t(), f"cusparse{self._library.product}"
        self._library.call(f"{name}_bufferSize", *arguments, ctypes.byref(needed))
        workspace = torch.empty(
            max(1, needed.value), dtype=torch.uint8, device=self._tensors[0].device
        )
        self._tensors.append(workspace)
        arguments = (*arguments, workspace.data_ptr())
        self._library.call(f"{name}_preprocess", *arguments)
        return arguments

    def _set_stream(self) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        self._library.call("cusparseSetStream", self._handle, stream)


@cache
def loaded_library(product: str) -> Library | None:
    functions = loaded_functions()
    return None if functions is None else Library(functions, product)


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
