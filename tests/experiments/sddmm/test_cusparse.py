"""The method `cusparse` says to the library what it means: checked with a library in Python."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch

import sddmm
from experiments.bench import cusparse as binding
from experiments.bench.sources import Uniform
from experiments.sddmm.case import Case, make_case
from experiments.sddmm.config import Config
from experiments.sddmm.methods import cusparse
from experiments.sddmm.verify import Reference
from tests.experiments.cusparse import DTYPES, STREAM, Fake, array, use


def sampled_product(
    fake: Fake, handle: int, op_a: int, op_b: int, alpha: int, a: int, b: int, beta: int, c: int,
    compute: int, algorithm: int, buffer: int,
) -> None:  # fmt: skip
    assert (op_a, op_b, algorithm) == (0, 0, 0)
    left, right = fake.dense(a), fake.dense(b)
    assert fake.shape(c) == (left.shape[0], right.shape[1])
    rows, columns, out = fake.csr(c)
    scale, keep = (array(scalar, 1, DTYPES[compute])[0] for scalar in (alpha, beta))
    product = left.astype(DTYPES[compute]) @ right.astype(DTYPES[compute])
    out[:] = scale * product[rows, columns] + keep * out


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    return use(Fake("SDDMM", sampled_product), monkeypatch)


def case_of(dtype: str = "float32", nnz: int = 90) -> Case:
    source = Uniform(rows=13, cols=17, nnz=nnz)
    return make_case("test", Config(matrix=source, k=5, dtype=dtype, device="cpu"))


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
    assert fake.streams == [STREAM] * 3
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
    fake = use(Fake("SDDMM", sampled_product, fails=name), monkeypatch)
    message = rf"^{name}: operation not supported \(cusparseStatus_t 10\)$"
    with pytest.raises(RuntimeError, match=message):
        cusparse.prepare(case_of())()
    gc.collect()
    assert len(fake.alive) == 1  # the handle


def test_what_it_does_not_serve_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(case: Case, library: Any = "here") -> str | None:
        monkeypatch.setattr(binding, "loaded_library", lambda product: library)  # or None
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
