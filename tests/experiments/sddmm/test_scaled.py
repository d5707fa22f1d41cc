"""Samples times the matrix's values: every method multiplies, and is verified with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from experiments.bench.sources import Uniform
from experiments.sddmm.case import Case, make_case
from experiments.sddmm.config import Config
from experiments.sddmm.forced import ForcedKernel
from experiments.sddmm.methods import ours
from experiments.sddmm.objective import SDDMM
from experiments.sddmm.verify import Reference
from tests.experiments.records import record

CONFIG = Config(matrix=Uniform(rows=40, cols=50, sparsity=0.5), k=16, device="cpu", scaled=True)


def drawn(dtype: str, heads: int = 1) -> Case:
    return make_case("40x50", replace(CONFIG, dtype=dtype, heads=heads))


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_method_multiplies_by_the_values_once(dtype: str, heads: int) -> None:
    case = drawn(dtype, heads)
    reference, tried = Reference(case), []
    for name, method in SDDMM.methods(CONFIG).items():
        if method.refuses(case) is None:
            tried.append(name)
            trials = SDDMM.trials(method, case, method.prepare(case), reference)
            assert len(trials) == 2
            for trial in trials:
                verdict = trial.check(trial.call())
                assert (verdict.checked, verdict.wrong) == (heads * case.nnz, 0), name
    assert {"ours", "torch_dense"} <= set(tried)
    if (dtype, heads) == ("float32", 1):
        assert {"isratnisa", "gather_einsum", "scipy_rows", "torch_csr"} <= set(tried)


def test_samples_that_are_not_multiplied_are_wrong() -> None:
    case = drawn("float32")
    plain = replace(case, values=None)
    assert Reference(case).check(ours.prepare(plain)()).wrong > 0
    assert Reference(plain).check(ours.prepare(case)()).wrong > 0
    assert Reference(case, full_work=100).check(ours.prepare(case)()).wrong == 0


def test_a_plan_for_scaled_samples_says_so_to_the_planner() -> None:
    case = drawn("float16")
    assert ours.new_plan(case).problem.scaled
    assert not ours.new_plan(replace(case, values=None)).problem.scaled
    assert isinstance(SDDMM.methods(replace(CONFIG, kernels=True))["row_gather"], ForcedKernel)


def test_values_are_of_the_operands_dtype_and_the_same_at_every_run() -> None:
    values = drawn("bfloat16").values
    assert values is not None
    assert values.dtype == torch.bfloat16
    assert values.unique().numel() > 100
    assert torch.equal(values, drawn("bfloat16").values)
    assert make_case("40x50", replace(CONFIG, scaled=False)).values is None


def test_records_tell_scaled_cases_from_others() -> None:
    plain = replace(CONFIG, scaled=False)
    assert SDDMM.identity(CONFIG) != SDDMM.identity(plain)
    assert "scaled" not in SDDMM.identity(plain)  # records of earlier days keep their keys
    fields = SDDMM.case_fields(drawn("float32"))
    scaled = replace(record("ours", 1.0), **fields)
    unscaled = replace(scaled, scaled=False)
    assert scaled.case != unscaled.case
    labels = SDDMM.labels([scaled, unscaled])
    assert [labels[r.case]["scaled"] for r in (scaled, unscaled)] == ["yes", "no"]
    assert labels[scaled.case]["matrix"] == labels[unscaled.case]["matrix"] == "40x50"
    assert "scaled" not in SDDMM.labels([unscaled])[unscaled.case]
    assert SDDMM.case_title("x", CONFIG).endswith(", scaled")


def test_a_record_of_a_peer_is_kept_only_while_its_multiplication_is_the_same() -> None:
    peers = {name: m for name, m in SDDMM.methods(CONFIG).items() if name != "ours"}
    plain = SDDMM.methods(replace(CONFIG, scaled=False))
    assert len(peers) > 3
    for name, peer in peers.items():
        more = set(SDDMM.sources(peer)) - set(SDDMM.sources(plain[name]))
        assert [path.name for path in more] == ["scaled.py"]


def test_only_sddmm_has_scaled_cases() -> None:
    with pytest.raises(ValueError, match="scaled must be false but in sddmm, got"):
        replace(CONFIG, objective="spmm")
