"""The memory of a device: what is free, and what a run allocates."""

from __future__ import annotations

import torch

from experiments.bench.environment import available_memory
from experiments.bench.methods import Run


def free_bytes(device: str) -> int:
    """The bytes that are free on the device, without those that torch keeps for reuse."""
    return torch.cuda.mem_get_info()[0] if device.startswith("cuda") else available_memory()


def peak_bytes(run: Run) -> int:
    """The memory on a GPU that a second run allocates at most, beside what is allocated before."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated()) - before
