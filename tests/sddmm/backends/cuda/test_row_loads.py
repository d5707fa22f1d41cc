"""How many lanes load a row, and in how many passes."""

from __future__ import annotations

import itertools

import pytest
import torch

from sddmm.backends.cuda.kernels.gather_csr import host as gather_csr
from sddmm.backends.cuda.kernels.gather_rows import host as gather_rows
from sddmm.backends.cuda.kernels.row_gather.loads import row_loads
from tests.sddmm.backends.cuda.test_cost_model import no_measurement, problem

__all__ = ["no_measurement"]


@pytest.mark.parametrize(
    ("row_bytes", "step", "lanes"),
    [
        (64, 2, 4),  # as short as what four lanes load at once
        (66, 2, 8),
        (128, 16, 4),
        (128, 8, 8),  # operands that begin at odd places
        (192, 16, 4),
        (208, 16, 8),
        (256, 16, 8),
        (320, 16, 4),  # five loads of four lanes need no guard
        (448, 16, 4),
        (576, 16, 8),
    ],
)
def test_eight_lanes_load_whole_lines_of_longer_rows(row_bytes: int, step: int, lanes: int) -> None:
    assert row_loads(row_bytes, True, step, False, False)["LANES"] == lanes


@pytest.mark.parametrize(
    ("row_bytes", "is_half", "long_rows", "pass_bytes", "batches"),
    [
        (256, True, False, 256, 4),
        (256, True, True, 256, 8),
        (512, False, True, 512, 4),
        (640, True, True, 640, 2),
        (720, False, False, 384, 4),  # two passes, and not 512 twice
        (1024, False, False, 512, 4),
        (1024, False, True, 256, 8),
        (1024, True, True, 256, 4),
        (1200, False, True, 256, 4),
    ],
)
def test_longer_rows_take_the_passes_that_pad_them_least(
    row_bytes: int, is_half: bool, long_rows: bool, pass_bytes: int, batches: int
) -> None:
    loads = row_loads(row_bytes, is_half, 16, long_rows, False)
    assert (loads["PASS_BYTES"], loads["BATCHES"]) == (pass_bytes, batches)


def test_every_row_is_covered_by_as_many_loads_of_each_lane() -> None:
    for row_bytes, step in itertools.product(range(2, 2600, 2), (2, 4, 8, 16)):
        for is_half, long_rows in itertools.product((False, True), (False, True)):
            if row_bytes % step:
                continue
            loads = row_loads(row_bytes, is_half, step, long_rows, long_rows)
            chunk = min(16, loads["PASS_BYTES"] // loads["LANES"])
            assert loads["PASS_BYTES"] % (loads["LANES"] * chunk) == 0
            assert loads["LOAD_BYTES"] <= min(step, chunk)
            assert 32 // loads["LANES"] * loads["BATCHES"] <= 32
            assert loads["ONE_PASS"] == (row_bytes <= loads["PASS_BYTES"])
            if loads["NO_TAIL"]:
                assert row_bytes % loads["PASS_BYTES"] == 0


@pytest.mark.parametrize(
    ("k", "dtype", "lanes", "pass_bytes", "batches"),
    [
        (256, torch.float16, 8, 512, 4),
        (384, torch.float16, 8, 128, 8),
        (512, torch.float16, 16, 1024, 4),
        (256, torch.float32, 16, 1024, 4),
        (320, torch.float32, 8, 256, 8),
    ],
)
def test_first_calls_by_rows_load_parts_of_more_rows(
    k: int, dtype: torch.dtype, lanes: int, pass_bytes: int, batches: int
) -> None:
    found = dict(gather_rows.macros_of(problem(100, 6_400, k=k, dtype=dtype), 16))
    loads = found["SDDMM_LANES"], found["SDDMM_PASS_BYTES"], found["SDDMM_BATCHES"]
    assert loads == (str(lanes), str(pass_bytes), str(batches))


@pytest.mark.parametrize(("k", "pass_bytes"), [(128, 512), (256, 256), (200, 256)])
def test_a_first_call_in_one_launch_takes_shorter_passes(k: int, pass_bytes: int) -> None:
    """Its registers hold addresses of its own."""
    asked = problem(100, 500, k=k, dtype=torch.float32)
    found, _ = gather_csr.macros_and_group(asked, 16)
    assert dict(found)["SDDMM_PASS_BYTES"] == str(pass_bytes)
