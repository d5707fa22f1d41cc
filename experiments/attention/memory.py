"""Refuses by counted bytes what a device cannot hold, before anything is allocated."""

from __future__ import annotations

import torch

from experiments.bench.memory import free_bytes
from experiments.spmm.case import OnSampled


def refuse_bytes(case: OnSampled, what: str, needed: int) -> str | None:
    """The refusal of arrays of so many bytes; None where they take at most half of what is free."""
    available = available_bytes(case.device)
    if needed <= available // 2:
        return None
    return f"its {what} take {needed} bytes, more than half of {available} available"


def available_bytes(device: str) -> int:
    """The bytes that a process can allocate on the device, those that torch keeps for reuse too."""
    if not device.startswith("cuda"):
        return free_bytes(device)
    return free_bytes(device) + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
