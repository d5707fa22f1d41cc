"""The distributed functions on 2 and 4 processes and on 2 to 8 GPUs; `checks.py` holds what each
tries."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.sddmm.distributed.ranks import run_checks


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_all_checks_pass_on_every_rank(size: int, tmp_path: Path) -> None:
    problems = run_checks(size, tmp_path)
    assert not problems, "\n".join(problems)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [2, 4, 8])
def test_all_checks_pass_on_every_gpu(size: int, tmp_path: Path) -> None:
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} GPUs, here are {torch.cuda.device_count()}")
    problems = run_checks(size, tmp_path, "nccl")
    assert not problems, "\n".join(problems)
