"""Runs checks on several processes, by gloo or by NCCL with a GPU for each.

python -m tests.sddmm.distributed.ranks RANK SIZE FILE ENGINE
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import sddmm.backends.cpu.backend as cpu_backend
from tests.conftest import ROOT

# Of all checks; what takes this long hangs. On GPUs, kernels are compiled first.
_SECONDS = {"gloo": 200, "nccl": 210}


def run_checks(size: int, folder: Path, engine: str = "gloo") -> list[str]:
    """Run the checks of this number of ranks; a message for each rank that failed or hangs."""
    words = [str(size), str(folder / "store"), engine]
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", __name__, str(rank), *words],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(size)
    ]  # fmt: skip
    end, problems = time.monotonic() + _SECONDS[engine], []
    for rank, process in enumerate(processes):
        try:
            text, _ = process.communicate(timeout=max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
            text = f"hangs\n{text}"
        if process.returncode or f"passed on {size}" not in text:
            problems.append(f"rank {rank} of {size} ended with {process.returncode}:\n{text}")
    return problems


def main(rank: int, size: int, store: str, engine: str) -> None:
    torch.set_num_threads(1)
    # Without numba, whose kernels take ten seconds to compile in every process.
    cpu_backend.find_spec = lambda name: None  # type: ignore[assignment]
    if engine == "nccl":
        torch.cuda.set_device(rank)
        engine = "cpu:gloo,cuda:nccl"
    dist.init_process_group(engine, init_method=f"file://{store}", rank=rank, world_size=size)
    checks = importlib.import_module("tests.sddmm.distributed.checks")
    for check in checks.CHECKS[size]:
        begin = time.process_time()
        try:
            check()
        except BaseException:
            print(f"in {check.__name__}:", flush=True)
            raise
        print(f"{check.__name__} {time.process_time() - begin:.2f} s", flush=True)
    print(f"all checks passed on {size} ranks", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
