"""A GPU call goes through few files, and does not go back and forth between them."""

from __future__ import annotations

import pytest

from experiments.walk import first_and_later
from gemm_core.emulation.kernel import missing_compiler

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")


@pytest.mark.parametrize(("kind", "most"), [("csr", 12), ("pattern", 8)])
def test_a_call_enters_few_files(kind: str, most: int) -> None:
    first, later = first_and_later(kind)
    assert len(first.files) <= 12
    assert first.changes <= 27
    assert len(later.files) <= most
    assert later.changes <= 18
    of_plans = {"sddmm/backends/cuda/comparison.py", "sddmm/backends/cuda/executor.py"}
    assert {*later.files} - {*first.files} <= of_plans
    # A count of nothing would hold, too.
    assert {"sddmm/ops/sddmm.py", "gemm_core/runtime/launch.py"} <= {*later.files}
