"""The methods of cuSPARSE say to the library what they mean: checked with a library in Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from experiments.bench import cusparse as binding
from experiments.spmm import cusparse
from experiments.spmm.methods import (
    cusparse_alg2,
    cusparse_alg2_permuted,
    cusparse_alg3,
    cusparse_alg3_permuted,
)
from experiments.spmm.objective import SPMM
from tests.experiments.cusparse import STREAM, Fake, array, use
from tests.experiments.spmm.test_methods import case_of, definition

ALG3 = 12
FLOAT32 = 0


def product(
    fake: Fake, handle: int, op_a: int, op_b: int, alpha: int, a: int, b: int, beta: int, c: int,
    compute: int, algorithm: int, buffer: int,
) -> None:  # fmt: skip
    assert (op_b, compute) == (0, FLOAT32)
    assert [array(scalar, 1, np.float32)[0] for scalar in (alpha, beta)] == [1, 0]
    for head in range(fake.batch.get(a, (1,))[0]):
        rows, columns, values = fake.csr(a, head)
        matrix = np.zeros(fake.shape(a), np.float32)
        np.add.at(matrix, (rows, columns), values)
        out = fake.dense(c, head)
        out[:] = ((matrix.T if op_a else matrix) @ fake.dense(b, head)).astype(out.dtype)


def is_op_of_alg3(handle: int, op_a: int, *arguments: int) -> bool:
    return bool(op_a) and arguments[7] == ALG3


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setattr(cusparse, "fastest_ways", {})
    return use(Fake("SpMM", product, refuses=is_op_of_alg3), monkeypatch)


def choose(monkeypatch: pytest.MonkeyPatch, *fastest: str) -> None:
    """Make the ways in whose words these stand the fastest."""

    def device_ms(product: Any) -> float:
        product()
        words = product.way.words(product.case)
        return -float(sum(word in words for word in fastest))

    monkeypatch.setattr(cusparse, "device_ms", device_ms)


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


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("reordering", ["torch.index_select", "torch.take"])
def test_weights_that_change_between_calls_are_put_in_order_in_every_call(
    heads: int, reordering: str, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, reordering, "CSR of the transpose", "strided batch")
    case = case_of(heads=heads, transpose=True)
    for method in (cusparse_alg2_permuted, cusparse_alg3_permuted):
        run = method.prepare(case)
        for _ in range(2):
            torch.testing.assert_close(run().double(), definition(case), atol=1e-4, rtol=1e-4)
            case.weights.mul_(-3)
        assert method.variant(case).endswith(f"CSR of the transpose, weights by {reordering}")


def test_no_call_reorders_weights_that_the_library_reads_in_the_order_of_s(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, "op(A) = T")
    case = case_of(transpose=True)
    run = cusparse_alg2_permuted.prepare(case)
    case.weights.mul_(-3)
    torch.testing.assert_close(run().double(), definition(case), atol=1e-4, rtol=1e-4)
    assert cusparse_alg2_permuted.variant(case) == "op(A) = T"
    assert "weights by" in cusparse_alg3_permuted.variant(case)


def test_both_orders_of_weights_are_verified_as_methods_of_their_own(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, "CSR of the transpose")
    case = case_of(transpose=True)
    reference = SPMM.reference(case)
    for method in (cusparse_alg3, cusparse_alg3_permuted):
        for trial in SPMM.trials(method, case, method.prepare(case), reference):
            assert trial.check(trial.call()).wrong == 0
    assert "weights by" not in cusparse_alg3.variant(case)


def test_ways_are_tried_once_and_every_run_is_one_call_for_each_head(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, "heads one by one")
    case = case_of(heads=3)
    run = cusparse_alg2.prepare(case)
    fake.calls.clear()
    run()
    assert fake.names == ["SetStream", "SpMM", "SpMM", "SpMM"]
    assert fake.streams == [STREAM]
    fake.calls.clear()
    cusparse_alg2.prepare(case)
    assert fake.names.count("SpMM_preprocess") == 3
    assert "SpMM" not in fake.names


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
    monkeypatch.setattr(binding, "loaded_library", lambda product: None)
    assert str(cusparse_alg3.refuses(on_gpu)).startswith("libcusparse is not here")
    monkeypatch.setattr(binding, "loaded_library", lambda product: "here")
    assert cusparse_alg3.refuses(on_gpu) is None
