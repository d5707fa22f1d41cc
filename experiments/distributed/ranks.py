"""The processes that torchrun starts: their group, their device, and what they tell each other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from experiments.bench.errors import ExperimentError

T = TypeVar("T")


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
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=here)
    else:
        here = torch.device("cpu")
        dist.init_process_group("gloo")
    try:
        yield here
    finally:
        dist.destroy_process_group()


def all_told(mine: T) -> list[T]:
    """What every rank says, by rank."""
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return told


def told_by_first(mine: T) -> T:
    """What rank 0 says."""
    return all_told(mine)[0]
