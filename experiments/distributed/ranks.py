"""The processes that torchrun starts: their group, their device, and what they tell each other."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from experiments.bench.errors import ExperimentError

T = TypeVar("T")

HIGH_PRIORITY = "TORCH_NCCL_HIGH_PRIORITY"

# After which NCCL ends a rank whose messages do not come, and torchrun the others.
_TIMEOUT = datetime.timedelta(seconds=180)


@contextlib.contextmanager
def joined(device: str) -> Iterator[torch.device]:
    """This process as a rank of torchrun's, with NCCL on GPUs and gloo on CPUs."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise ExperimentError(
            "objective=distributed measures the processes of torchrun; start it as `torchrun "
            "--nproc-per-node 2 -m experiments run ...`"
        )
    if device == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise ExperimentError(
                f"torchrun started a process {local} on this machine, which has "
                f"{torch.cuda.device_count()} GPUs; choose --nproc-per-node accordingly"
            )
        torch.cuda.set_device(local)
        here = torch.device("cuda", local)
        # So that NCCL's blocks come before those of a kernel that waits for its turn.
        os.environ.setdefault(HIGH_PRIORITY, "1")
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=_TIMEOUT)
    else:
        here = torch.device("cpu")
        dist.init_process_group("gloo")
    try:
        yield here
    finally:
        dist.destroy_process_group()


def engine(device: torch.device) -> dict[str, Any]:
    """What carries the messages, and the variables of the environment that steer it."""
    if device.type != "cuda":
        return {"name": "gloo"}
    steering = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(("NCCL_", "TORCH_NCCL_"))
    }
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return {"name": "NCCL", "version": version, "variables": steering}


def all_told(mine: T) -> list[T]:
    """What every rank says, by rank."""
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return told


def told_by_first(mine: T) -> T:
    """What rank 0 says."""
    return all_told(mine)[0]
