"""The memory of a device: what it cannot hold is refused beforehand; what a run allocates."""

from __future__ import annotations

import torch

from experiments.bench.environment import available_memory
from experiments.bench.methods import Run


def refuse_bytes(device: str, what: str, needed: int) -> str | None:
    """Why arrays of so many bytes are not allocated; None where half of what is free holds them.

    what: the arrays, with a verb: "the gathered rows take".
    """
    available = _available_bytes(device)
    if needed <= available // 2:
        return None
    return f"{what} {needed} bytes, more than half of {available} available"


def _available_bytes(device: str) -> int:
    """The bytes that a process can allocate on the device, those that torch keeps for reuse too."""
    if not device.startswith("cuda"):
        return available_memory()
    free = torch.cuda.mem_get_info()[0]
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def peak_bytes(run: Run) -> int:
    """The memory on a GPU that a second run allocates at most, beside what is allocated before."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated()) - before
