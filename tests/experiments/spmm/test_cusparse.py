"""The methods of cuSPARSE say to the library what they mean: checked with a library in Python.

The fake has the C signatures of cusparse.h and reads and writes memory as NVIDIA documents it, so
that a wrong order, stride, type or address gives a wrong product.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from experiments.sddmm.methods.cusparse import Library
from experiments.spmm import cusparse
from experiments.spmm.methods import cusparse_alg2, cusparse_alg3
from tests.experiments.sddmm.test_cusparse import (
    BUFFER_BYTES,
    C_TYPES,
    DTYPES,
    INDEX_DTYPES,
    NOT_SUPPORTED,
    ROW,
    STREAM,
    array,
    write,
)
from tests.experiments.spmm.test_methods import case_of, definition

# As cusparse.h declares them: p a pointer, l an int64_t, i an enum or an int.
HEADER = {
    "cusparseCreate": "p",
    "cusparseDestroy": "p",
    "cusparseSetStream": "pp",
    "cusparseCreateDnMat": "plllpii",
    "cusparseDnMatSetStridedBatch": "pil",
    "cusparseDestroyDnMat": "p",
    "cusparseCreateCsr": "plllpppiiii",
    "cusparseCsrSetStridedBatch": "pill",
    "cusparseDestroySpMat": "p",
    "cusparseSpMM_bufferSize": "piipppppiip",
    "cusparseSpMM_preprocess": "piipppppiip",
    "cusparseSpMM": "piipppppiip",
}
ALG3 = 12
FLOAT32 = 0


class Fake:
    """libcusparse over main memory. calls: the functions called; slow: heads that take longer."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.alive: dict[int, tuple[Any, ...]] = {}
        self.batch: dict[int, tuple[Any, ...]] = {}
        self.handles = 0
        text = ctypes.create_string_buffer(b"operation not supported")
        self.cusparseGetErrorString = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(
            lambda status: ctypes.addressof(text)
        )
        for name, letters in HEADER.items():
            kind = ctypes.CFUNCTYPE(ctypes.c_int, *(C_TYPES[letter] for letter in letters))
            setattr(self, name, kind(self._function(name)))

    def _function(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            self.calls.append(name.removeprefix("cusparse"))
            if name.startswith("cusparseCreate"):
                self.handles += 1000
                self.alive[self.handles] = arguments[1:]
                write(arguments[0], self.handles)
            elif name.startswith("cusparseDestroy"):
                del self.alive[arguments[0]]
            elif name.endswith("SetStridedBatch"):
                self.batch[arguments[0]] = arguments[1:]
            elif name == "cusparseSetStream":
                assert arguments[1] == STREAM
            elif name == "cusparseSpMM_bufferSize":
                write(arguments[-1], BUFFER_BYTES)
            elif arguments[1] and arguments[9] == ALG3:
                return NOT_SUPPORTED
            elif name == "cusparseSpMM":
                self._product(*arguments)
            return 0

        return function

    def _product(
        self, handle: int, op_a: int, op_b: int, alpha: int, a: int, b: int, beta: int, c: int,
        compute: int, algorithm: int, buffer: int,
    ) -> None:  # fmt: skip
        assert handle in self.alive
        assert (op_b, compute) == (0, FLOAT32)
        assert [array(scalar, 1, np.float32)[0] for scalar in (alpha, beta)] == [1, 0]
        for head in range(self.batch.get(a, (1,))[0]):
            out = self._dense(c, head)
            out[:] = (self._sparse(a, head, op_a) @ self._dense(b, head)).astype(out.dtype)

    def _sparse(self, descriptor: int, head: int, operation: int) -> np.ndarray:
        rows, cols, nnz, indptr, indices, values, *kinds = self.alive[descriptor]
        assert (kinds[0], kinds[2]) == (kinds[1], 0)
        _, indptr_stride, stride = self.batch.get(descriptor, (1, 0, 0))
        index, dtype = np.dtype(INDEX_DTYPES[kinds[0]]), np.dtype(DTYPES[kinds[3]])
        ends = array(indptr + head * indptr_stride * index.itemsize, rows + 1, index)
        columns = array(indices + head * stride * index.itemsize, nnz, index)
        matrix = np.zeros((rows, cols), np.float32)
        own = array(values + head * stride * dtype.itemsize, nnz, dtype)
        np.add.at(matrix, (np.repeat(np.arange(rows), np.diff(ends)), columns), own)
        return matrix.T if operation else matrix

    def _dense(self, descriptor: int, head: int) -> np.ndarray:
        rows, cols, leading, address, kind, order = self.alive[descriptor]
        assert (order, leading) == (ROW, cols)
        dtype = np.dtype(DTYPES[kind])
        begin = address + head * self.batch.get(descriptor, (1, 0))[1] * dtype.itemsize
        return array(begin, rows * cols, dtype).reshape(rows, cols)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    library = Library(fake, cusparse.SIGNATURES)
    monkeypatch.setattr(cusparse, "loaded_library", lambda: library)  # none is installed here
    monkeypatch.setattr(cusparse, "fastest_ways", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    stream = SimpleNamespace(cuda_stream=STREAM)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    return fake


def choose(monkeypatch: pytest.MonkeyPatch, *fastest: str) -> None:
    """Make the ways in whose words these stand the fastest."""

    def device_ms(product: Any) -> float:
        product()
        words = product.way.words(product.case)
        return -float(sum(word in words for word in fastest))

    monkeypatch.setattr(cusparse, "device_ms", device_ms)


def test_the_signatures_are_those_of_the_header() -> None:
    declared = {name: tuple(C_TYPES[x] for x in letters) for name, letters in HEADER.items()}
    assert declared == cusparse.SIGNATURES


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("batch", ["strided batch", "heads one by one"])
@pytest.mark.parametrize("operation", ["op(A) = T", "CSR of the transpose"])
def test_every_way_gives_the_product(
    dtype: str, batch: str, operation: str, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, batch, operation)
    for heads, transpose in ((1, False), (1, True), (3, False), (3, True)):
        case = case_of(dtype=dtype, heads=heads, transpose=transpose)
        run = cusparse_alg2.prepare(case)
        run()
        result = run()  # what was there is overwritten, not added to
        assert result.dtype == case.dense.dtype
        torch.testing.assert_close(result.double(), definition(case), atol=1e-2, rtol=1e-2)
        words = [batch] * (heads > 1) + [operation] * transpose
        assert cusparse_alg2.variant(case) == ", ".join(words)


def test_a_transpose_that_an_algorithm_refuses_is_computed_by_the_csr_of_the_transpose(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, "op(A) = T")
    case = case_of(transpose=True)
    torch.testing.assert_close(
        cusparse_alg3.prepare(case)().double(), definition(case), atol=1e-4, rtol=1e-4
    )
    assert cusparse_alg3.variant(case) == "CSR of the transpose"


def test_the_reordering_of_weights_is_timed_where_the_csr_of_the_transpose_is_used(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cusparse, "device_ms", lambda run: (run(), 1.5)[1])
    assert cusparse_alg3.reorder_ms(case_of(transpose=True)) == 1.5
    assert cusparse_alg3.reorder_ms(case_of(transpose=True, heads=3)) == 1.5
    assert cusparse_alg3.reorder_ms(case_of()) is None
    choose(monkeypatch, "op(A) = T")
    cusparse.fastest_ways.clear()
    assert cusparse_alg2.reorder_ms(case_of(transpose=True)) is None


def test_ways_are_tried_once_and_every_run_is_one_call_for_each_head(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, "heads one by one")
    case = case_of(heads=3)
    run = cusparse_alg2.prepare(case)
    fake.calls.clear()
    run()
    assert fake.calls == ["SetStream", "SpMM", "SpMM", "SpMM"]
    fake.calls.clear()
    cusparse_alg2.prepare(case)
    assert fake.calls.count("SpMM_preprocess") == 3
    assert "SpMM" not in fake.calls


def test_what_the_library_refuses_in_every_way_is_told(fake: Fake) -> None:
    only_op = cusparse.Way(ALG3, is_batch=False, is_op=True)
    with pytest.raises(RuntimeError, match=r"SpMM_preprocess: operation not supported"):
        cusparse.fastest_of(case_of(transpose=True), [only_op])


def test_what_it_does_not_serve_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of((9, 9, 0, 4))
    on_gpu = replace(case, sampled=replace(case.sampled, device="cuda"))
    assert cusparse_alg2.refuses(on_gpu) == (
        "there is nothing to compute: the pattern has 0 nonzeros"
    )
    case = case_of()
    on_gpu = replace(case, sampled=replace(case.sampled, device="cuda"))
    monkeypatch.setattr(cusparse, "loaded_library", lambda: None)
    assert str(cusparse_alg3.refuses(on_gpu)).startswith("libcusparse is not here")
    monkeypatch.setattr(cusparse, "loaded_library", lambda: "here")
    assert cusparse_alg3.refuses(on_gpu) is None
