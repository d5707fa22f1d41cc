"""Which variant computes a problem: pure functions of plain values."""

from __future__ import annotations

import functools

from gemm_core.ladder.registry import KERNELS
from gemm_core.ladder.spec import GemmProblem, KernelSpec
from gemm_core.runtime.device import Device

# Registers a thread that the estimate of resident blocks assumes: what the large tiles use.
_REGISTERS = 256


def resident_blocks(spec: KernelSpec, device: Device) -> int:
    """Blocks of a kernel that one multiprocessor holds at a time, at least 1."""
    by_registers = 65536 // (_REGISTERS * spec.threads)
    by_shared = device.shared_bytes // max(1, spec.shared_bytes)
    return max(1, min(by_registers, by_shared))


def predicted_us(spec: KernelSpec, problem: GemmProblem, device: Device) -> float:
    """Time in us: full waves of blocks, each at the kernel's measured rate."""
    slots = device.sm_count * resident_blocks(spec, device)
    waves = -(-spec.blocks(problem) // slots)
    block_flops = 2 * spec.tile[0] * spec.tile[1] * max(problem.k, spec.tile[2])
    return waves * slots * block_flops / (spec.rate * 1e6)


@functools.lru_cache(maxsize=4096)
def choose(problem: GemmProblem, device: Device, name: str | None = None) -> KernelSpec:
    """The kernel predicted fastest among those that do not refuse, or the one called `name`.

    Raises ValueError with every refusal if none is left.
    """
    if name is not None and name not in KERNELS:
        raise ValueError(f"unknown kernel {name!r}; choose from: {', '.join(KERNELS)}")
    asked = [KERNELS[name]] if name is not None else list(KERNELS.values())
    refusals = {spec.name: spec.refuses(problem, device) for spec in asked}
    serving = [spec for spec in asked if refusals[spec.name] is None]
    if not serving:
        told = "; ".join(f"{kernel} {reason}" for kernel, reason in refusals.items())
        raise ValueError(f"no kernel serves this problem: {told}")
    return min(serving, key=lambda spec: predicted_us(spec, problem, device))
