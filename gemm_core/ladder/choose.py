"""Ranks the kernels that serve a problem by predicted time: pure functions of plain values."""

from __future__ import annotations

import functools

from gemm_core.ladder.registry import KERNELS
from gemm_core.ladder.spec import GemmProblem, KernelSpec
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import ceil_div

# The estimate of resident blocks assumes as many registers per thread as the large tiles use.
_REGISTERS_PER_THREAD = 256


def resident_blocks(spec: KernelSpec, device: Device) -> int:
    """The number of blocks of a kernel that one multiprocessor holds at a time, at least 1."""
    by_registers = 65536 // (_REGISTERS_PER_THREAD * spec.threads)
    by_shared = device.shared_bytes // max(1, spec.shared_bytes)
    return max(1, min(by_registers, by_shared))


def predicted_us(spec: KernelSpec, problem: GemmProblem, device: Device) -> float:
    """The predicted time in us: full waves of blocks, each at the kernel's measured rate."""
    slots = device.sm_count * resident_blocks(spec, device)
    waves = ceil_div(spec.blocks(problem), slots)
    block_flops = 2 * spec.tile[0] * spec.tile[1] * max(problem.k, spec.tile[2])
    return waves * slots * block_flops / (spec.h200_tflops * 1e6)


@functools.lru_cache(maxsize=4096)
def choose(problem: GemmProblem, device: Device, name: str | None = None) -> KernelSpec:
    """The kernel predicted fastest among those that do not refuse, or the one called `name`.

    Raises ValueError with every refusal if none is left.
    """
    if name is not None and name not in KERNELS:
        raise ValueError(f"unknown kernel {name!r}; choose from: {', '.join(KERNELS)}")
    candidates = [KERNELS[name]] if name is not None else list(KERNELS.values())
    refusals = {spec.name: spec.refuses(problem, device) for spec in candidates}
    serving = [spec for spec in candidates if refusals[spec.name] is None]
    if not serving:
        reasons = "; ".join(f"{kernel} {reason}" for kernel, reason in refusals.items())
        raise ValueError(f"no kernel serves this problem: {reasons}")
    return min(serving, key=lambda spec: predicted_us(spec, problem, device))
