"""The distributed functions on 2 and on 4 gloo processes; `checks.py` holds what each tries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sddmm.distributed.ranks import run_checks


@pytest.mark.parametrize("size", [2, 4])
def test_all_checks_pass_on_every_rank(size: int, tmp_path: Path) -> None:
    problems = run_checks(size, tmp_path)
    assert not problems, "\n".join(problems)
