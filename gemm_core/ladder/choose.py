"""Ranks the kernels that serve a problem by predicted time: pure functions of plain values."""

from __future__ import annotations

import functools
import logging
import math

from gemm_core.arithmetic import ceil_div
from gemm_core.ladder.registry import KERNELS
from gemm_core.ladder.spec import GemmProblem, KernelSpec
from gemm_core.runtime.device import Device

_log = logging.getLogger(__name__)

# A padded copy is a launch that reads and writes each byte at the rate of an H200's memory.
_COPIED_BYTES_PER_US, _COPY_US = 2.1e6, 5.0

# The share of a wave's time that blocks take which have a multiprocessor each where more would fit,
# and that of blocks which leave half of the multiprocessors free.
_ALONE, _HALF_FREE = 0.5, 0.65
# The time of first loads and last stores, which other blocks of the multiprocessor may hide.
_EDGES_US, _HIDDEN_EDGES_US = 2.0, 1.0
# The time of exchanging sums, for each block that shares a tile.
_EXCHANGE_US = 1.0

# The estimate of resident blocks assumes as many registers per thread as the large tiles use.
_REGISTERS_PER_THREAD = 256


def resident_blocks(spec: KernelSpec, device: Device) -> int:
    """The number of blocks of a kernel that one multiprocessor holds at a time, at least 1."""
    by_registers = max(spec.min_blocks, 65536 // (_REGISTERS_PER_THREAD * spec.threads))
    by_shared = device.shared_bytes // max(1, spec.shared_bytes)
    return max(1, min(by_registers, by_shared))


def predicted_us(spec: KernelSpec, problem: GemmProblem, device: Device) -> float:
    """The predicted time in us: full waves of blocks, each at the kernel's measured rate."""
    blocks, resident = spec.blocks(problem), resident_blocks(spec, device)
    slots = device.sm_count * resident
    waves: float = ceil_div(blocks, slots)
    if blocks <= slots // 2:
        waves = _ALONE if resident > 1 else _HALF_FREE
    split_k = 1 if spec.tma is None else spec.tma.split_k
    block_flops = 2 * spec.tile[0] * spec.tile[1] * max(ceil_div(problem.k, split_k), spec.tile[2])
    rate = spec.h200_tflops or math.nan
    exchange_us = 0.0 if split_k == 1 else waves * split_k * _EXCHANGE_US
    edges_us = _EDGES_US if resident == 1 else _HIDDEN_EDGES_US
    run_us = waves * slots * block_flops / (rate * 1e6)
    return run_us + edges_us + exchange_us + _copy_us(spec, problem)


def _copy_us(spec: KernelSpec, problem: GemmProblem) -> float:
    """The predicted time in us of copying operands whose rows TMA cannot read."""
    if spec.tma is None:
        return 0.0
    copied = 0 if problem.aligned_a else problem.m * problem.k
    copied += 0 if problem.aligned_b else problem.n * problem.k
    return copied * problem.dtype.itemsize / _COPIED_BYTES_PER_US + (_COPY_US if copied else 0)


@functools.lru_cache(maxsize=4096)
def choose(problem: GemmProblem, device: Device, name: str | None = None) -> KernelSpec:
    """The kernel predicted fastest among those that do not refuse, or the one called `name`.

    A kernel whose rate has not been measured serves by name only. Raises ValueError with every
    refusal if none is left.
    """
    if name is not None and name not in KERNELS:
        raise ValueError(f"unknown kernel {name!r}; choose from: {', '.join(KERNELS)}")
    measured = [spec for spec in KERNELS.values() if spec.h200_tflops is not None]
    candidates = [KERNELS[name]] if name is not None else measured
    refusals = {spec.name: spec.refuses(problem, device) for spec in candidates}
    serving = [spec for spec in candidates if refusals[spec.name] is None]
    if not serving:
        reasons = "; ".join(f"{kernel} {reason}" for kernel, reason in refusals.items())
        raise ValueError(f"no kernel serves this problem: {reasons}")
    best = min(serving, key=lambda spec: predicted_us(spec, problem, device))
    refused = {kernel: reason for kernel, reason in refusals.items() if reason is not None}
    _log.debug("%s for %s; refused: %s", best.name, problem, refused)
    return best
