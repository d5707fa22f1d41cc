"""Measures host overhead: how long a call takes to return, without the work of the GPU, and whole
first calls and training steps on mini-batches, most of which is the host's."""

from __future__ import annotations

import itertools
import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sddmm
from experiments.bench import table
from experiments.bench.environment import environment
from experiments.bench.errors import ExperimentError
from experiments.bench.page.facts import Environment
from experiments.bench.page.render import again, page
from experiments.bench.page.tables import Table
from experiments.host_overhead.config import LaunchConfig
from experiments.host_overhead.mini_batch_steps import mini_batch_steps_us
from experiments.host_overhead.mini_batches import EDGES, NODES, SMALLER, K, mini_batches_us
from gemm_core.ladder.api import gemm, load_kernel, problem_of
from gemm_core.ladder.bound import launch_arguments
from gemm_core.ladder.choose import choose
from gemm_core.ladder.registry import KERNELS
from gemm_core.runtime.device import device
from sddmm.testing import random_pattern

_PERCENTILES = {"median": 50, "p20": 20, "p80": 80}
_SIZE = 64  # so small that the GPU keeps up
_SETS = 16
_BY_TMA = "wgmma_store_128x256x64_stage3"  # a launch with three tensor maps


def run(config: LaunchConfig) -> None:
    """Write launch.json, launch.html, launch.md, mini_batches.md and mini_batch_steps.md to
    config.output; print the tables."""
    if not torch.cuda.is_available():
        raise ExperimentError("launch measures calls of GPU kernels, but torch sees no CUDA device")
    a, b = (torch.randn(_SIZE, _SIZE, device="cuda").half() for _ in range(2))
    calls = _products(a, b) | _sampled(a, b.mT)  # n rows, which the operator reads without a copy
    samples_us = {name: _host_us(call, config) for name, call in calls.items()}
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    record = {
        "samples_us": samples_us,
        "mini_batches_us": mini_batches_us(config.batches),
        "mini_batch_steps_us": mini_batch_steps_us(config.batches),
        "environment": environment("cuda"),
    }
    (output / "launch.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
    texts = {
        "launch.md": [_row(name, "host us", us) for name, us in samples_us.items()],
        "mini_batches.md": [
            _row(name, "first call us", us) for name, us in record["mini_batches_us"].items()
        ],
        "mini_batch_steps.md": [
            _row(name, "step us", us) for name, us in record["mini_batch_steps_us"].items()
        ],
    }
    for file, rows in texts.items():
        (output / file).write_text(table.as_text(rows) + "\n", encoding="utf-8")
    (output / "launch.html").write_text(as_html(record, config), encoding="utf-8")
    for rows in texts.values():
        print(table.as_text(rows))


def as_html(record: dict[str, Any], config: LaunchConfig) -> str:
    """The page of what launch.json holds."""
    keys = "samples_us", "mini_batches_us", "mini_batch_steps_us"
    rows, first, steps = (_statistics(record[key]) for key in keys)
    note = f"What one call costs the host, in us, with {_SIZE}x{_SIZE} halves."
    first_note = (
        f"Wall times in us of first calls on mini-batches of {NODES:,} nodes and {EDGES:,} edges, "
        f"or of up to {SMALLER:.0%} fewer, with k = {K} in float32."
    )
    steps_note = (
        f"Wall times in us of forward and backward on batches of so many edges in any order, or of "
        f"up to {SMALLER:.0%} fewer, with features of {K} in float32."
    )
    where = Environment(record["environment"])
    command = f"python -m experiments launch batches={config.batches} calls={config.calls}"
    return page(
        title="Host overhead",
        overview={
            "device": str(where.values["device"]),
            "calls": f"{len(rows) + len(first) + len(steps)}",
        },
        tables=[
            Table("Calls", rows, note=note),
            Table("First calls on mini-batches", first, note=first_note),
            Table("Training steps on mini-batches", steps, note=steps_note),
        ],
        environments=[(where, again(where, [command]))],
        command=f"{command} {shlex.quote(f'output={config.output}')}",
        data="launch.json",
    )


def _products(a: torch.Tensor, b: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Dense products: a launch alone, and the calls of gemm beside those of torch."""
    out = torch.empty_like(a)
    problem = problem_of(a, b, out, "fp32", "ieee")
    spec = choose(problem, device(0))
    kernel, arguments = load_kernel(spec, problem, 0), launch_arguments(spec, problem, a, b, out)
    sets = itertools.cycle([[x.clone() for x in (a, b, out)] for _ in range(_SETS)])

    def multiply_others() -> None:
        a, b, out = next(sets)
        gemm(a, b, out=out)

    calls: dict[str, Callable[[], object]] = {
        "prepared launch": lambda: kernel(*arguments),
        "gemm(a, b, out=out)": lambda: gemm(a, b, out=out),
        f"gemm(a, b, out=out), {_SETS} sets in turn": multiply_others,
        "torch.mm(a, b, out=out)": lambda: torch.mm(a, b, out=out),
        "gemm(a, b)": lambda: gemm(a, b),
        "torch.mm(a, b)": lambda: torch.mm(a, b),
    }
    if (refusal := KERNELS[_BY_TMA].refuses(problem, device(0))) is None:
        calls[f"gemm(..., kernel={_BY_TMA!r})"] = lambda: gemm(a, b, out=out, kernel=_BY_TMA)
    else:
        print(f"not measured: {_BY_TMA} {refusal}")
    return calls


def _sampled(a: torch.Tensor, b: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Calls of this package's operator: with a plan, and with a look-up of one.

    torch counts the changes of the tensors in a tuple; the indices inside a sparse tensor have no
    such count, so that every call compares them with those of the plan.
    """
    pattern = random_pattern(_SIZE, _SIZE, _SIZE, device="cuda")
    plan = sddmm.plan(pattern, k=_SIZE, dtype=a.dtype)
    matrix = torch.sparse_csr_tensor(
        pattern.major_indices, pattern.col_indices, torch.ones_like(a[0]), pattern.shape,
        check_invariants=False,
    )  # fmt: skip
    coo = (pattern.row_ids.clone(), pattern.col_indices.clone(), pattern.shape)
    return {
        "plan.run(a, b)": lambda: plan.run(a, b),
        "sddmm(pattern, a, b)": lambda: sddmm.sddmm(pattern, a, b),
        "sddmm((rows, cols, shape), a, b)": lambda: sddmm.sddmm(coo, a, b),
        "sddmm(csr_tensor, a, b)": lambda: sddmm.sddmm(matrix, a, b),
    }


def _host_us(call: Callable[[], object], config: LaunchConfig) -> list[float]:
    """Mean us of a call, batch by batch; the queue is empty when a batch begins."""
    samples = []
    for _ in range(config.batches + 3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(config.calls):
            call()
        samples.append((time.perf_counter() - begin) / config.calls * 1e6)
    torch.cuda.synchronize()
    return samples[3:]  # the first batches compile, load and warm up


def _row(name: str, label: str, samples_us: list[float]) -> dict[str, str]:
    low, median, high = np.percentile(samples_us, (20, 50, 80))
    return {"method": name, label: f"{median:.1f}", "p20-p80": f"{low:.1f}-{high:.1f}"}


def _statistics(samples_us: dict[str, list[float]]) -> list[dict[str, object]]:
    return [
        {
            "method": name,
            **{f"{label}_us": float(np.percentile(us, p)) for label, p in _PERCENTILES.items()},
            "p80_over_p20": float(np.percentile(us, 80) / np.percentile(us, 20)),
            "batches": len(us),
        }
        for name, us in samples_us.items()
    ]
