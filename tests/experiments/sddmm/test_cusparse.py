"""The method `cusparse` says to the library what it means: checked with a library in Python.

The fake has the C signatures of cusparse.h and reads and writes memory as NVIDIA documents it, so
that a wrong order, leading dimension, type or address gives wrong values.
"""

from __future__ import annotations

import ctypes
import gc
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import sddmm
from experiments.bench.sources import Uniform
from experiments.sddmm.case import Case, make_case
from experiments.sddmm.config import Config
from experiments.sddmm.methods import cusparse
from experiments.sddmm.verify import Reference

# As cusparse.h declares them: p a pointer, l an int64_t, i an enum.
HEADER = {
    "cusparseCreate": "p",
    "cusparseDestroy": "p",
    "cusparseSetStream": "pp",
    "cusparseCreateDnMat": "plllpii",
    "cusparseDestroyDnMat": "p",
    "cusparseCreateCsr": "plllpppiiii",
    "cusparseDestroySpMat": "p",
    "cusparseSDDMM_bufferSize": "piipppppiip",
    "cusparseSDDMM_preprocess": "piipppppiip",
    "cusparseSDDMM": "piipppppiip",
}
C_TYPES = {"p": ctypes.c_void_p, "l": ctypes.c_int64, "i": ctypes.c_int}
NOT_SUPPORTED = 10
STREAM = 0xBEEF
ROW, COL = 2, 1
DTYPES = {0: np.float32, 1: np.float64, 2: np.float16}
INDEX_DTYPES = {2: np.int32, 3: np.int64}
BUFFER_BYTES = 48


def array(address: int, count: int, dtype: Any) -> np.ndarray:
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


def write(address: int, value: int) -> None:
    ctypes.c_size_t.from_address(address).value = value


class Fake:
    """libcusparse over main memory. calls: (name, arguments); fails: a function that refuses."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.alive: dict[int, tuple[Any, ...]] = {}
        self.fails = fails
        text = ctypes.create_string_buffer(b"operation not supported")
        self.cusparseGetErrorString = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(
            lambda status: ctypes.addressof(text)
        )
        for name, letters in HEADER.items():
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
                write(arguments[0], number)
            elif name.startswith("cusparseDestroy"):
                del self.alive[arguments[0]]
            elif name == "cusparseSDDMM_bufferSize":
                write(arguments[-1], BUFFER_BYTES)
            elif name == "cusparseSDDMM":
                self._sddmm(*arguments)
            return 0

        return function

    def _sddmm(
        self, handle: int, op_a: int, op_b: int, alpha: int, a: int, b: int, beta: int, c: int,
        compute: int, algorithm: int, buffer: int,
    ) -> None:  # fmt: skip
        assert handle in self.alive
        assert algorithm == 0
        left, right = self._dense(a, op_a), self._dense(b, op_b)
        m, n, nnz, crow, cols, values, crow_type, cols_type, base, kind = self.alive[c]
        assert (left.shape[0], right.shape[1], crow_type, base) == (m, n, cols_type, 0)
        rows = np.repeat(np.arange(m), np.diff(array(crow, m + 1, INDEX_DTYPES[crow_type])))
        columns = array(cols, nnz, INDEX_DTYPES[cols_type])
        out = array(values, nnz, DTYPES[kind])
        scale, keep = (array(scalar, 1, DTYPES[compute])[0] for scalar in (alpha, beta))
        product = left.astype(DTYPES[compute]) @ right.astype(DTYPES[compute])
        out[:] = scale * product[rows, columns] + keep * out

    def _dense(self, descriptor: int, operation: int) -> np.ndarray:
        rows, cols, leading, address, kind, order = self.alive[descriptor]
        lines, used = (rows, cols) if order == ROW else (cols, rows)
        stored = array(address, lines * leading, DTYPES[kind]).reshape(lines, leading)[:, :used]
        matrix = stored if order == ROW else stored.T
        return matrix if operation == 0 else matrix.T

    @property
    def names(self) -> list[str]:
        return [name.removeprefix("cusparse") for name, _ in self.calls]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    return use(Fake(), monkeypatch)


def use(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Fake:
    library = cusparse.Library(fake)
    monkeypatch.setattr(cusparse, "loaded_library", lambda: library)  # none is installed here
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    stream = SimpleNamespace(cuda_stream=STREAM)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    return fake


def case_of(dtype: str = "float32", nnz: int = 90) -> Case:
    source = Uniform(rows=13, cols=17, nnz=nnz)
    return make_case("test", Config(matrix=source, k=5, dtype=dtype, device="cpu"))


def test_the_signatures_are_those_of_the_header() -> None:
    declared = {name: tuple(C_TYPES[x] for x in letters) for name, letters in HEADER.items()}
    assert declared == cusparse.SIGNATURES


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_it_gives_the_values_of_the_definition(dtype: str, fake: Fake) -> None:
    case = case_of(dtype)
    run = cusparse.prepare(case)
    run()
    values = run()  # what was there is overwritten, not added to
    assert values.dtype == case.out_dtype
    assert Reference(case).check(values).wrong == 0


def test_heads_are_products_one_after_another(fake: Fake) -> None:
    source = Uniform(rows=13, cols=17, nnz=90)
    case = make_case("test", Config(matrix=source, k=5, heads=3, dtype="float16", device="cpu"))
    run = cusparse.prepare(case)
    values = run()
    verdict = Reference(case).check(values)
    assert (verdict.checked, verdict.wrong) == (270, 0)
    assert fake.names.count("SDDMM") == 3
    assert run().data_ptr() == values.data_ptr()  # no copy is part of a run


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_unsorted_coo_with_duplicates_keeps_its_order(dtype: torch.dtype, fake: Fake) -> None:
    rows, cols = torch.tensor([[9, 2, 9, 0, 2], [1, 16, 1, 3, 0]], dtype=dtype)
    pattern = sddmm.SparsePattern.from_coo(rows, cols, (13, 17))
    case = replace(case_of(), pattern=pattern)
    values = cusparse.prepare(case)()
    torch.testing.assert_close(values, (case.a @ case.b)[rows.long(), cols.long()])


def test_a_pattern_is_preprocessed_once_and_every_run_is_one_call(fake: Fake) -> None:
    run = cusparse.prepare(case_of())
    prepared = ["Create", "CreateDnMat", "CreateDnMat", "CreateCsr", "SetStream"]
    assert fake.names == [*prepared, "SDDMM_bufferSize", "SDDMM_preprocess"]
    run()
    run()
    assert fake.names[7:] == ["SetStream", "SDDMM"] * 2
    streams = [arguments[1] for name, arguments in fake.calls if name == "cusparseSetStream"]
    assert streams == [STREAM] * 3
    preprocessed, ran = fake.calls[6][1], fake.calls[8][1]
    assert preprocessed == ran  # the same descriptors and the same workspace


def test_descriptors_go_with_the_product_and_the_handle_stays(fake: Fake) -> None:
    run = cusparse.prepare(case_of())
    assert len(fake.alive) == 4
    del run
    gc.collect()
    assert sorted(fake.names[7:]) == ["DestroyDnMat", "DestroyDnMat", "DestroySpMat"]
    assert len(fake.alive) == 1
    cusparse.prepare(case_of())
    assert fake.names.count("Create") == 1


@pytest.mark.parametrize("name", ["cusparseCreateCsr", "cusparseSDDMM_preprocess", "cusparseSDDMM"])
def test_a_status_that_is_not_success_is_told_with_its_function(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = use(Fake(fails=name), monkeypatch)
    message = rf"^{name}: operation not supported \(cusparseStatus_t 10\)$"
    with pytest.raises(RuntimeError, match=message):
        cusparse.prepare(case_of())()
    gc.collect()
    assert len(fake.alive) == 1  # the handle


def test_what_it_does_not_serve_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(case: Case, library: Any = "here") -> str | None:
        monkeypatch.setattr(cusparse, "loaded_library", lambda: library)  # installed, or not
        return cusparse.refuses(case)

    on_gpu = replace(case_of(), device="cuda")
    assert reason(on_gpu) is None
    assert reason(case_of()) == "cuSPARSE computes on a GPU, not on a CPU"
    assert reason(replace(case_of("bfloat16"), device="cuda")) == (
        "cusparseSDDMM takes float16, float32 and float64 on CSR, not bfloat16"
    )
    empty = replace(case_of(nnz=0), device="cuda")
    assert reason(empty) == "there is nothing to compute: the pattern has 0 nonzeros"
    assert str(reason(on_gpu, None)).startswith("libcusparse is not here")


def test_a_library_that_is_loaded_already_is_the_one_that_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maps = "7f00-7f10 r-xp 00000000 08:01 42   /some where/lib/libcusparse.so.12\n"
    monkeypatch.setattr(cusparse.Path, "read_text", lambda self: maps)
    opened: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda path: (opened.append(path), Fake())[1])
    for looked_for_once in (cusparse.loaded_library, cusparse.loaded_functions):
        looked_for_once.cache_clear()
    assert cusparse.loaded_library() is not None  # every public call needs a GPU
    assert opened == ["/some where/lib/libcusparse.so.12"]
    for looked_for_once in (cusparse.loaded_library, cusparse.loaded_functions):
        looked_for_once.cache_clear()  # the next test looks for the real one


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_run_is_captured_in_a_graph_and_its_replay_computes(dtype: str) -> None:
    source = Uniform(rows=700, cols=600, nnz=9000)
    case = make_case("test", Config(matrix=source, k=64, dtype=dtype, device="cuda"))
    assert cusparse.refuses(case) is None
    run = cusparse.prepare(case)
    values = run()
    assert Reference(case).check(values).wrong == 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values = run()
    values.zero_()
    case.a.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert Reference(case).check(values).wrong == 0
