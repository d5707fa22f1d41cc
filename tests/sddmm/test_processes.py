"""Used patterns and plans in other processes: by fork, by spawn, in a DataLoader, in files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.sddmm.process_jobs import JOBS

# Each takes a few seconds; what takes this long hangs.
_SECONDS = 60


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("job", JOBS)
def test_after_use(job: str) -> None:
    """The job ends, with status 0, which it does only if all values are those of one process."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.sddmm.process_jobs", job],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        told, _ = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children too
        told, _ = process.communicate()
        pytest.fail(f"{job} hangs:\n{told}")
    assert process.returncode == 0, f"{job} ended with {process.returncode}:\n{told}"
