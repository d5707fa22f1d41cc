"""Runs checks on several processes, by gloo or by NCCL with a GPU for each.

python -m tests.sddmm.distributed.ranks SIZE FOLDER ENGINE
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

import sddmm.backends.cpu.backend as cpu_backend
from tests.conftest import ROOT

# The seconds of all checks; what takes longer hangs. On GPUs, kernels are compiled first.
_SECONDS = {"gloo": 200, "nccl": 210}


def run_checks(size: int, folder: Path, engine: str = "gloo") -> list[str]:
    """Run the checks of this number of ranks; a message for each rank that failed or hangs."""
    with (folder / "start").open("w") as told:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", __name__, str(size), str(folder), engine],
            cwd=ROOT, stdout=told, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    try:
        process.wait(_SECONDS[engine])
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    problems = []
    for rank in range(size):
        path = folder / f"rank{rank}"
        text = (path if path.exists() else folder / "start").read_text()
        if process.returncode and not text.endswith(_passed(size)):
            problems.append(f"rank {rank} of {size} failed or hangs:\n{text}")
    assert bool(problems) == bool(process.returncode), (folder / "start").read_text()
    return problems


def _passed(size: int) -> str:
    return f"all checks passed on {size} ranks\n"


def main(size: int, folder: Path, engine: str) -> None:
    """Import everything once, then fork the ranks: no thread runs before."""
    torch.set_num_threads(1)
    # Without numba, whose kernels take ten seconds to compile in every process.
    cpu_backend.find_spec = lambda name: None  # type: ignore[assignment]
    module = importlib.import_module("tests.sddmm.distributed.checks")
    checks = module.CHECKS[size]
    if size == 2 and engine == "gloo":  # four ranks try these in the same run of the tests
        slow = (
            module.ranks_write_into_each_others_memory,
            module.messages_after_kernels_as_on_a_gpu_change_nothing,
            module.attention_merges_panels_to_what_one_process_gives,
        )
        checks = [check for check in checks if check not in slow]
    torch.testing.assert_close(torch.ones(1), torch.ones(1))  # the first imports for a second
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            _be_rank(rank, size, folder, engine, checks)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(statuses))


def _be_rank(
    rank: int, size: int, folder: Path, engine: str, checks: list[Callable[[], None]]
) -> NoReturn:
    """Run the checks as one rank, which tells its own file what it does, and end the process."""
    told = os.open(folder / f"rank{rank}", os.O_CREAT | os.O_WRONLY)
    os.dup2(told, 1)
    os.dup2(told, 2)
    status = 1
    try:
        _run_as_rank(rank, size, folder / "store", engine, checks)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run_as_rank(
    rank: int, size: int, store: Path, engine: str, checks: list[Callable[[], None]]
) -> None:
    if engine == "nccl":
        torch.cuda.set_device(rank)
        engine = "cpu:gloo,cuda:nccl"
    dist.init_process_group(engine, init_method=f"file://{store}", rank=rank, world_size=size)
    for check in checks:
        begin = time.process_time()
        try:
            check()
        except BaseException:
            print(f"in {check.__name__}:", flush=True)
            raise
        print(f"{check.__name__} {time.process_time() - begin:.2f} s", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    print(_passed(size), end="", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
