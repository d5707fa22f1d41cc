"""Measures the memory of a GPU."""

from __future__ import annotations

import torch

from experiments.bench.methods import Run


def peak_bytes(run: Run) -> int:
    """The memory that a second run allocates at most, beside what is allocated before."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated()) - before
