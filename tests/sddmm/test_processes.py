"""Used patterns and plans in other processes: by fork, by spawn, in a DataLoader, in files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.sddmm.process_jobs import JOBS

# All take a few seconds; what takes this long hangs.
_SECONDS = 120


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_use(tmp_path: Path) -> None:
    """Every job ends, and tells that all values were those of one process."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.sddmm.process_jobs", str(tmp_path)],
        cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    try:
        process.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children too
        process.wait()
    told = {job: tmp_path / job for job in JOBS}
    texts = {job: path.read_text() if path.exists() else "" for job, path in told.items()}
    wrong = {job: text for job, text in texts.items() if not text.endswith("right\n")}
    assert not wrong, "\n".join(f"{job} failed or hangs:\n{text}" for job, text in wrong.items())
