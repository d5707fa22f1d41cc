"""Measuring what a device reaches, in some tenths of a second; the result is kept on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gemm_core.runtime.compile import cache_folder, save
from gemm_core.runtime.device import Device
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.row_gather.host import ROW_GATHER
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.problem import SddmmProblem

_log = logging.getLogger(__name__)

# The version of what is measured: raise it when that changes, and measure the reference of
# device_model.py anew.
_VERSION = 2

_SIZE, _NNZ, _K = 8192, 1 << 20, 256  # gathered: 8 MiB of rows, which stay in L2
_COPIED = 1 << 28  # bytes
_PRODUCT = 4096
# The least runs of each, and the time that they take together: an idle GPU raises its clocks late.
_LEAST_RUNS, _LEAST_SECONDS = 10, 0.03


@dataclass(frozen=True)
class Measurement:
    """Rates per second: bytes that row_gather loads out of L2, bytes that a copy reads and writes,
    flops of torch.mm in float16."""

    gather_bytes: float
    copy_bytes: float
    mm_flops: float


def measure_device(device: Device) -> Measurement | None:
    """The cached measurement, or a new one; None where nothing can be measured now."""
    path = cache_folder() / f"speed-{_key(device)}.json"
    try:
        return Measurement(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        pass
    if not loader.runtime.can_measure():
        return None
    try:
        with torch.cuda.device(device.index):
            measurement = _measure(device)
    except torch.OutOfMemoryError as error:
        _log.debug("cannot measure %s: %s", device.name, error)
        return None
    save(path, json.dumps(dataclasses.asdict(measurement)).encode())
    return measurement


def _key(device: Device) -> str:
    what = (_VERSION, device.name, device.sm_count, device.l2_bytes, torch.version.cuda)
    return hashlib.blake2b(repr(what).encode(), digest_size=8).hexdigest()


def _measure(device: Device) -> Measurement:
    torch_device = torch.device("cuda", device.index)
    return Measurement(
        gather_bytes=2 * _K * _NNZ / _seconds(_gathering(device, torch_device)),
        copy_bytes=_COPIED / _seconds(_copying(torch_device)),
        mm_flops=2 * _PRODUCT**3 / _seconds(_multiplying(torch_device)),
    )


def _gathering(device: Device, torch_device: torch.device) -> Callable[[], object]:
    rows = torch.arange(_NNZ, dtype=torch.int32, device=torch_device) // (_NNZ // _SIZE)
    cols = torch.randint(_SIZE, (_NNZ,), dtype=torch.int32, device=torch_device)
    a, b_t = (torch.ones(_SIZE, _K, dtype=torch.float16, device=torch_device) for _ in range(2))
    out = torch.empty(_NNZ, dtype=torch.float16, device=torch_device)
    problem = SddmmProblem(
        m=_SIZE, n=_SIZE, k=_K, nnz=_NNZ, dtype=torch.float16, out_dtype=torch.float16,
        precision="ieee", index_dtype=torch.int32, heads=None, device=torch_device,
    )  # fmt: skip
    plan = ROW_GATHER.plan(Nonzeros(rows, cols, None), problem, device)
    launch = plan.bind(a, b_t)
    # A launch holds addresses alone: the default argument keeps the tensors alive.
    return lambda tensors=(rows, cols, a, b_t): launch(0, out.data_ptr(), 1.0)  # type: ignore[misc]


def _copying(torch_device: torch.device) -> Callable[[], object]:
    source, target = torch.zeros(2, _COPIED // 2, dtype=torch.int8, device=torch_device)
    return lambda: target.copy_(source)


def _multiplying(torch_device: torch.device) -> Callable[[], object]:
    a, b, c = torch.ones(3, _PRODUCT, _PRODUCT, dtype=torch.float16, device=torch_device)
    return lambda: torch.mm(a, b, out=c)


def _seconds(work: Callable[[], object]) -> float:
    """The quickest run of those that are enough, after one that does not count."""
    work()
    times: list[float] = []
    while len(times) < _LEAST_RUNS or sum(times) < _LEAST_SECONDS:
        begin, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return min(times)
