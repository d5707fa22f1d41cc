"""The planner of today, asked for the uniform problems of which every kernel's time is recorded."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
import torch

from sddmm.dtypes import DTYPES
from sddmm.problem import SddmmProblem
from tests.sddmm.backends.cuda.test_cost_model import best, no_measurement

__all__ = ["no_measurement"]

RECORDS = Path(__file__).parents[4] / "docs/results/h200"
DTYPE_OF = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


def times(study: str) -> dict[SddmmProblem, dict[str, float]]:
    """The median time of every kernel, in ms, by uniform problem."""
    found: dict[SddmmProblem, dict[str, float]] = {}
    for line in (RECORDS / study / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["family"] != "uniform" or not record["samples_ms"]:
            continue
        heads = record["heads"]
        asked = SddmmProblem(
            m=record["m"], n=record["n"], k=record["k"], nnz=record["nnz"],
            dtype=DTYPE_OF[record["dtype"]], out_dtype=torch.float32, precision="ieee",
            index_dtype=torch.int32, heads=heads if heads > 1 else None,
            device=torch.device("cuda", 0), scaled=record["scaled"],
        )  # fmt: skip
        kernel = record["kernel"]
        if kernel:
            median = statistics.median(record["samples_ms"])
            own = found.setdefault(asked, {})
            own[kernel] = min(median, own.get(kernel, math.inf))
    return found


@pytest.mark.parametrize(("study", "problems"), [("regret", 44), ("scaled", 15)])
def test_choices_are_on_average_three_and_at_most_fifteen_percent_slower_than_the_best(
    study: str, problems: int
) -> None:
    """Also where the costs were fitted after the records were made."""
    recorded = times(study)
    assert len(recorded) == problems
    regrets = {asked: by[best(asked)] / min(by.values()) for asked, by in recorded.items()}
    assert statistics.geometric_mean(regrets.values()) <= 1.03
    assert max(regrets.values()) <= 1.15
