"""What the objective `distributed` does on two ranks; `tests/sddmm/distributed` starts them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from experiments.bench.config import Timing
from experiments.bench.sources import HashedRmat, Uniform
from experiments.distributed.case import Case, make_case
from experiments.distributed.measure import divide, measure
from experiments.distributed.objective import DISTRIBUTED
from experiments.distributed.operations import OPERATIONS, Operands
from experiments.distributed.verify import verify
from experiments.sddmm.config import Config
from sddmm.distributed import DistributedPattern

K, NNZ = 9, 400


def case_on(device: torch.device, source: Any, **options: Any) -> Case:
    config = Config(objective="distributed", matrix=source, k=K, device=device.type, **options)
    return make_case("test", config, str(device))


def the_laboratory_verifies_and_measures_every_operation(device: torch.device) -> None:
    case = case_on(device, Uniform(rows=50, cols=70, nnz=NNZ))
    divided = divide(case, "ring", 1, device)
    fields = {**DISTRIBUTED.case_fields(case), "key": "key", "session": "one"}
    timing = Timing(seconds=0.0, min_samples=2, max_samples=3)
    for name in OPERATIONS:
        record = measure(name, divided, timing, fields)
        assert record.status == "ok", record.reason
        values = {
            "sddmm": NNZ, "spmm": 50 * K, "training": NNZ + (50 + 70) * K,
            "attention": 2 * (50 + 70) * K,
        }  # fmt: skip
        assert record.checked == values[name]
        assert len(record.samples_ms) == len(record.ranks_ms[1]) == 2
        assert record.samples_ms[0] == max(record.ranks_ms[0][0], record.ranks_ms[1][0])
        assert len(record.one_ms) == (2 if dist.get_rank() == 0 else 0)
        assert record.messages_ms
        assert record.predicted_messages_ms
        kinds = [span[0] for span in record.spans[0]]
        computed = {"sddmm": 2, "spmm": 2, "training": 6, "attention": 4}
        assert kinds.count("compute") == computed[name]
        assert ("transfer" in kinds) == (device.type == "cuda")
        moved = {"sddmm": 35, "spmm": 35, "training": 3 * 35, "attention": 4 * 35 + 2 * 70}
        assert record.received_bytes == record.formula_bytes == [moved[name] * K * 4] * 2


def the_laboratory_finds_wrong_results_of_every_operation(device: torch.device) -> None:
    """In float16, of an R-MAT graph whose ranks have other numbers of rows."""
    source = HashedRmat(rows=60, cols=60, nnz=500, shuffled=False)
    case = case_on(device, source, dtype="float16", heads=2)
    for way in ("slices", "row_slices"):
        S = divide(case, way, 1, device).S
        for name, operation in OPERATIONS.items():
            own = operation.of_rank(case, S)
            assert verify(name, case, own, operation.call(own)).wrong == 0, (name, way)
    S = divide(case, "ring", 1, device).S
    assert S.rows.stop - S.rows.start != 30
    for name, operation in OPERATIONS.items():
        own = operation.of_rank(case, S)
        results = operation.call(own)
        assert verify(name, case, own, results).wrong == 0, name
        for i, result in enumerate(results):
            wrong = [x.clone() for x in results]
            wrong[i].view(-1)[-1] += 1 + result.abs().max()
            assert verify(name, case, own, tuple(wrong)).wrong == 1, (name, i)
        other = next(iter(operation.needs))
        changed = replace(
            own, tensors={**own.tensors, other: own[other].flip(-2 if own[other].dim() > 2 else -1)}
        )
        assert verify(name, case, own, operation.call(changed)).wrong > 0, name


def ranks_and_one_process_make_the_same_operands(device: torch.device) -> None:
    case = case_on(device, Uniform(rows=50, cols=70, nnz=NNZ), heads=3)
    S: DistributedPattern = divide(case, "rows", 1, device).S
    for operation in OPERATIONS.values():
        own: Operands = operation.of_rank(case, S)
        one = operation.of_one(case)
        places = {"a": S.rows, "grad_out": S.rows, "b_t": S.columns, "v": S.columns}
        for name in operation.needs:
            begin, stop = int(case.crow[S.rows.start]), int(case.crow[S.rows.stop])
            at = (
                (..., slice(begin, stop)) if name == "weights" else (..., places[name], slice(None))
            )
            assert torch.equal(own[name], one[name][at]), name
