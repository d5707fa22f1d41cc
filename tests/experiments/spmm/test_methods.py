"""Every method gives the product of the definition, or says why it does not serve."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from experiments.bench.sources import Banded, RandomBlocks, Uniform
from experiments.sddmm.config import Config
from experiments.spmm.case import Case, make_case
from experiments.spmm.methods import METHODS, YARDSTICKS, gather_index_add
from experiments.spmm.objective import SPMM
from experiments.spmm.verify import Reference

PERMUTED = ("cusparse_alg2_permuted", "cusparse_alg3_permuted")
ON_GPU_ONLY = ("cusparse_alg2", "cusparse_alg3", *PERMUTED, "row_gather")
PRODUCTS = [
    name for name in METHODS.names() if name not in (*ON_GPU_ONLY, *YARDSTICKS, "torch_bsr")
]
SIZES = [(50, 70, 400, 33), (1, 300, 40, 5), (300, 1, 40, 1), (9, 9, 0, 4)]


def case_of(
    size: tuple[int, int, int, int] = SIZES[0], dtype: str = "float32", **all_: object
) -> Case:
    rows, cols, nnz, k = size
    source = Uniform(rows=rows, cols=cols, nnz=nnz)
    config = {"objective": "spmm", "k": k, "dtype": dtype, "device": "cpu", **all_}
    return make_case("test", Config(matrix=source, **config))  # type: ignore[arg-type]


def definition(case: Case) -> torch.Tensor:
    """The product by a dense matrix."""
    W = torch.zeros(*case.weights.shape[:-1], case.m, case.n, dtype=torch.float64)
    rows, cols = case.pattern.row_ids.long(), case.pattern.col_indices.long()
    W[..., rows, cols] = case.weights.double()
    return (W.mT if case.transpose else W) @ case.dense.double()


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_each_method_is_right(name: str, transpose: bool, size: tuple[int, int, int, int]) -> None:
    case = case_of(size, transpose=transpose)
    method = METHODS.select([name])[name]
    assert method.refuses(case) is None
    for run in (method.prepare(case), SPMM.first_call(method, case)):
        result = run()
        torch.testing.assert_close(result.double(), definition(case), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("transpose", [False, True])
def test_each_method_computes_several_heads(name: str, transpose: bool) -> None:
    case = case_of(heads=3, transpose=transpose)
    method = METHODS.select([name])[name]
    expected = definition(case)
    assert expected.shape == (3, 70 if transpose else 50, 33)
    for run in (method.prepare(case), SPMM.first_call(method, case)):
        torch.testing.assert_close(run().double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", METHODS.names())
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_right_or_refused(name: str, dtype: str) -> None:
    case = case_of(dtype=dtype)
    method = METHODS.select([name])[name]
    reason = method.refuses(case)
    if name in (*ON_GPU_ONLY, "sddmm_tiles", "torch_csr", "torch_bsr"):
        assert reason is not None
        return
    assert reason is None
    result = method.prepare(case)()
    assert result.dtype == case.dense.dtype
    rounds = getattr(method, "PARTIAL_SUMS_ROUND", False)
    columns = case.n
    reference = Reference(case.view, columns, case.weights, case.dense)
    assert reference.check(result, rounds).wrong == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS.names())
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("transpose", [False, True])
def test_each_method_is_right_on_a_gpu(name: str, dtype: str, heads: int, transpose: bool) -> None:
    method = METHODS.select([name])[name]
    case = case_of((700, 600, 9000, 64), dtype, heads=heads, transpose=transpose, device="cuda")
    if (reason := method.refuses(case)) is not None:
        assert name in ("sddmm_tiles", "torch_bsr") or (name in PERMUTED and not transpose), reason
        return
    run = method.prepare(case)
    for trial in SPMM.trials(method, case, run, SPMM.reference(case)):
        assert trial.check(trial.call()).wrong == 0


def case_of_blocks(rows: int = 96, **all_: object) -> Case:
    source = RandomBlocks(rows=rows, cols=160, block=32, density=0.4)
    config = {"objective": "spmm", "k": 64, "dtype": "float16", "device": "cpu", **all_}
    return make_case("blocks", Config(matrix=source, **config))  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("transpose", [False, True])
def test_torch_multiplies_whole_blocks(dtype: str, heads: int, transpose: bool) -> None:
    method = METHODS.select(["torch_bsr"])["torch_bsr"]
    case = case_of_blocks(dtype=dtype, heads=heads, transpose=transpose, device="cuda")
    assert method.refuses(case) is None
    run = method.prepare(case)
    for trial in SPMM.trials(method, case, run, SPMM.reference(case)):
        assert trial.check(trial.call()).wrong == 0


def test_torch_says_which_blocks_it_does_not_multiply() -> None:
    method = METHODS.select(["torch_bsr"])["torch_bsr"]
    assert method.refuses(case_of()) == "the pattern is not made of blocks"
    assert method.refuses(case_of_blocks(90)) == "blocks of 32 are cut at the edge of 90 x 160"
    assert method.refuses(case_of_blocks()) == "torch's BSR product needs MKL on a CPU"


def test_what_computes_on_a_gpu_alone_says_so() -> None:
    case = case_of(transpose=True)
    reasons = [METHODS.select([name])[name].refuses(case) for name in ON_GPU_ONLY]
    assert reasons == ["cuSPARSE computes on a GPU, not on a CPU"] * 4 + [
        "row_gather is a GPU kernel"
    ]


@pytest.mark.parametrize("name", PERMUTED)
def test_weights_are_put_in_order_only_for_the_transpose(name: str) -> None:
    assert METHODS.select([name])[name].refuses(case_of()) == (
        f"W is not transposed, so no call reorders its weights: see {name[:13]}"
    )


def test_the_yardstick_of_masks_computes_the_sddmm_of_the_same_operands() -> None:
    method = METHODS.select(["sddmm_tiles"])["sddmm_tiles"]
    assert str(method.refuses(case_of())).startswith("row_gather is the yardstick")
    source = Banded(rows=60, cols=60, bandwidth=4)
    case = make_case(
        "mask", Config(objective="spmm", matrix=source, family="window", k=16, device="cpu")
    )
    assert method.refuses(case) is None
    run = method.prepare(case)
    (trial,) = SPMM.trials(method, case, run, reference=None)  # type: ignore[arg-type]
    assert trial.check(trial.call()).wrong == 0
    assert trial.check(run() + 1).wrong > 0
    assert not SPMM.times_first_call(method)


def test_rows_that_do_not_fit_in_memory_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.bench.memory.available_memory", lambda: 200_000)
    reason = gather_index_add.refuses(case_of())
    assert reason == "the gathered rows take 105600 bytes, more than half of 200000 available"


def test_a_case_of_the_transpose_multiplies_a_and_the_other_b() -> None:
    case = case_of(transpose=True)
    assert case.dense is case.sampled.a
    straight = replace(case, transpose=False)
    torch.testing.assert_close(straight.dense, straight.sampled.b.mT)
    assert straight.out_shape == (50, 33)
    assert case.out_shape == (70, 33)
