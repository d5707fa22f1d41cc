"""A libcusparse in Python, for tests of what is said to the library.

It has the C signatures of cusparse.h and reads and writes memory as NVIDIA documents it, so that a
wrong order, leading dimension, stride, type or address gives wrong values.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from experiments.bench import cusparse

C_TYPES = {"p": ctypes.c_void_p, "l": ctypes.c_int64, "i": ctypes.c_int}
NOT_SUPPORTED = 10
STREAM = 0xBEEF
BUFFER_BYTES = 48
DTYPES = {0: np.float32, 1: np.float64, 2: np.float16}
_INDEX_DTYPES = {2: np.int32, 3: np.int64}
_ROW = 2


def header(product: str) -> dict[str, str]:
    """The arguments in cusparse.h: p a pointer, l an int64_t, i an enum or an int."""
    return {
        "cusparseCreate": "p",
        "cusparseDestroy": "p",
        "cusparseSetStream": "pp",
        "cusparseCreateDnMat": "plllpii",
        "cusparseDnMatSetStridedBatch": "pil",
        "cusparseDestroyDnMat": "p",
        "cusparseCreateCsr": "plllpppiiii",
        "cusparseCsrSetStridedBatch": "pill",
        "cusparseDestroySpMat": "p",
        f"cusparse{product}_bufferSize": "piipppppiip",
        f"cusparse{product}_preprocess": "piipppppiip",
        f"cusparse{product}": "piipppppiip",
    }


def array(address: int, count: int, dtype: Any) -> np.ndarray:
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


def _write(address: int, value: int) -> None:
    ctypes.c_size_t.from_address(address).value = value


class Fake:
    """libcusparse over main memory. calls: (name, arguments), in their order.

    compute: what the product's function does, after the fake itself. fails: a function that
    refuses. refuses: whether the product and its preprocessing refuse their arguments.
    """

    def __init__(
        self,
        product: str,
        compute: Callable[..., None],
        fails: str = "",
        refuses: Callable[..., bool] = lambda *arguments: False,
    ) -> None:
        self.product, self.fails = product, fails
        self._compute, self._refuses = compute, refuses
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.alive: dict[int, tuple[Any, ...]] = {}
        self.batch: dict[int, tuple[Any, ...]] = {}
        text = ctypes.create_string_buffer(b"operation not supported")
        self.cusparseGetErrorString = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(
            lambda status: ctypes.addressof(text)
        )
        for name, letters in header(product).items():
            kind = ctypes.CFUNCTYPE(ctypes.c_int, *(C_TYPES[letter] for letter in letters))
            setattr(self, name, kind(self._function(name)))

    def _function(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            if name == self.fails:
                return NOT_SUPPORTED
            if name.startswith("cusparseCreate"):
                number = len(self.calls) * 1000
                self.alive[number] = arguments[1:]
                _write(arguments[0], number)
            elif name.startswith("cusparseDestroy"):
                del self.alive[arguments[0]]
            elif name.endswith("SetStridedBatch"):
                self.batch[arguments[0]] = arguments[1:]
            elif name.endswith("_bufferSize"):
                _write(arguments[-1], BUFFER_BYTES)
            elif name.startswith(f"cusparse{self.product}") and self._refuses(*arguments):
                return NOT_SUPPORTED
            elif name == f"cusparse{self.product}":
                assert arguments[0] in self.alive
                self._compute(self, *arguments)
            return 0

        return function

    def dense(self, descriptor: int, head: int = 0) -> np.ndarray:
        """A dense matrix in its memory."""
        rows, cols, leading, address, kind, order = self.alive[descriptor]
        lines, used = (rows, cols) if order == _ROW else (cols, rows)
        dtype = np.dtype(DTYPES[kind])
        begin = address + head * self.batch.get(descriptor, (1, 0))[1] * dtype.itemsize
        stored = array(begin, lines * leading, dtype).reshape(lines, leading)[:, :used]
        return stored if order == _ROW else stored.T

    def csr(self, descriptor: int, head: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows, the columns and the values of the nonzeros, the values in their memory."""
        rows, _, nnz, indptr, indices, values, *kinds = self.alive[descriptor]
        assert (kinds[0], kinds[2]) == (kinds[1], 0)
        _, indptr_stride, stride = self.batch.get(descriptor, (1, 0, 0))
        index, dtype = np.dtype(_INDEX_DTYPES[kinds[0]]), np.dtype(DTYPES[kinds[3]])
        ends = array(indptr + head * indptr_stride * index.itemsize, rows + 1, index)
        columns = array(indices + head * stride * index.itemsize, nnz, index)
        own = array(values + head * stride * dtype.itemsize, nnz, dtype)
        return np.repeat(np.arange(rows), np.diff(ends)), columns, own

    def shape(self, descriptor: int) -> tuple[int, int]:
        rows, cols = self.alive[descriptor][:2]
        return rows, cols

    @property
    def names(self) -> list[str]:
        return [name.removeprefix("cusparse") for name, _ in self.calls]

    @property
    def streams(self) -> list[int]:
        return [arguments[1] for name, arguments in self.calls if name == "cusparseSetStream"]


def use(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Make the fake the library that is loaded; none is installed here."""
    library = cusparse.Library(fake, fake.product)
    monkeypatch.setattr(cusparse, "loaded_library", {fake.product: library}.__getitem__)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    stream = SimpleNamespace(cuda_stream=STREAM)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    return fake
