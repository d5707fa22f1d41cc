"""Running out of a GPU's memory, told in bytes."""

from __future__ import annotations

import torch


def out_of_memory(what: str, wanted: int, device: torch.device) -> torch.OutOfMemoryError:
    """The error to raise when `what`, of `wanted` bytes, found no room."""
    free, total = torch.cuda.mem_get_info(device)
    return torch.OutOfMemoryError(
        f"{what} wants {wanted} bytes; {free} of {total} are free on {device}"
    )
