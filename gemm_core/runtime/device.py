"""The properties of a GPU that kernel choice, compilation and launch depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

# The index of torch's current device. Every call asks, so no frame of ours is in between, nor that
# of torch's public function, which asks first whether CUDA is initialized: a tensor is there.
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


@dataclass(frozen=True, eq=False)
class Device:
    """One GPU. index: torch's. shared_bytes: the largest dynamic shared memory of a block.

    Compared by identity, as every plan looks it up as a key; `device` returns one object per GPU.
    """

    index: int
    name: str
    capability: tuple[int, int]
    sm_count: int
    shared_bytes: int
    l2_bytes: int

    @property
    def arch(self) -> str:
        return arch_of(self.capability)


def arch_of(capability: tuple[int, int]) -> str:
    """The compile target. 9.0 gives sm_90a, the only one with wgmma and setmaxnreg."""
    major, minor = capability
    return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def format_capability(capability: tuple[int, int]) -> str:
    """A compute capability as NVIDIA writes it: 9.0."""
    return f"{capability[0]}.{capability[1]}"


@cache
def device(index: int) -> Device:
    """The GPU with torch's index; its properties are queried once."""
    properties: Any = torch.cuda.get_device_properties(index)  # the type stubs lack fields
    return Device(
        index=index,
        name=properties.name,
        capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
        shared_bytes=properties.shared_memory_per_block_optin,
        l2_bytes=properties.L2_cache_size,
    )
