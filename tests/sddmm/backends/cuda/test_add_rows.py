"""add_rows adds what arrived to the chosen rows, of every shape and type, and changes no other."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.add_rows.host import add_rows, load
from sddmm.dtypes import DTYPES
from sddmm.testing import H200, emulated_gpu
from tests.cases import cases
from tests.sddmm.backends.cuda.test_compile import DEVICES, Compiler, compiler, own_cache
from tests.sddmm.memory import at_a_cliff

__all__ = ["compiler", "own_cache"]

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
ROWS = torch.tensor([11, 0, 5, 12, 3])
EVERY = list(itertools.product((F16, BF16, F32, F64), (1, 8, 33, 64, 260, 1024)))


def terms(k: int, dtype: torch.dtype, count: int = 13) -> Tensor:
    generator = torch.Generator().manual_seed(k + count)
    return torch.randn(count, k, generator=generator, dtype=F64).to(dtype)


def require_added(own: Tensor, arrived: Tensor, totals: Tensor) -> None:
    wide = DTYPES[own.dtype].accumulator
    expected = totals.clone()
    expected[ROWS] = (own[ROWS].to(wide) + arrived.to(wide)).to(totals.dtype)
    with emulated_gpu(H200) as launches:
        add_rows(own, arrived, at_a_cliff(ROWS), totals)
    assert torch.equal(totals, expected)
    assert launches == ["add_rows"]


@pytest.mark.parametrize(
    ("dtype", "k"), cases(EVERY, here=[(F16, 64), (BF16, 33), (F32, 260), (F64, 8), (F16, 1)])
)
def test_sums_are_rounded_once(dtype: torch.dtype, k: int) -> None:
    own, arrived = (at_a_cliff(terms(k, dtype, count)) for count in (13, ROWS.numel()))
    require_added(own, arrived, at_a_cliff(torch.full((13, k), 7.0, dtype=dtype)))
    require_added(own, arrived, own)


@pytest.mark.parametrize(("dtype", "arrived"), [(F32, F16), (F32, BF16), (F64, F32)])
def test_narrow_rows_are_added_to_wide_ones(dtype: torch.dtype, arrived: torch.dtype) -> None:
    own, totals = terms(40, dtype), torch.zeros(13, 40, dtype=arrived)
    require_added(own, terms(40, arrived, ROWS.numel()), own)
    require_added(own, terms(40, arrived, ROWS.numel()), totals)


def test_rows_may_lie_apart_and_begin_anywhere() -> None:
    own, totals = terms(80, F16)[:, 7:47], terms(96, F16)[:, 8:48]
    require_added(own, terms(40, F16, ROWS.numel()), totals)


def test_own_rows_may_be_the_chosen_ones_alone() -> None:
    own, arrived = terms(64, F32, ROWS.numel()), terms(64, F32, ROWS.numel()) + 1
    totals = torch.full((13, 64), 7.0, dtype=F16)
    expected = totals.clone()
    expected[ROWS] = (own + arrived).half()
    with emulated_gpu(H200):
        add_rows(own, arrived, ROWS, totals, is_compact=True)
    assert torch.equal(totals, expected)


def test_nothing_that_arrived_is_no_launch() -> None:
    own = terms(8, F32)
    with emulated_gpu(H200) as launches:
        add_rows(own, own[:0], ROWS[:0], own)
    assert launches == []


@pytest.mark.parametrize("arch", cases(DEVICES, here=["sm_90a"]))
def test_it_compiles_without_spilling(arch: str, compiler: Callable[[Device], Compiler]) -> None:
    made = compiler(DEVICES[arch])
    dtypes = [(F16, F16, F16), (F32, F16, F32), (F32, F32, BF16), (F64, F64, F64)]
    for own, arrived, total in dtypes:
        load(loader.runtime, (own, arrived, total), 8, 16 // own.itemsize, DEVICES[arch].index)
    assert len(made.cubins["add_rows"]) == len(dtypes)
    for cubin in made.cubins["add_rows"]:
        assert cubin.resources.spill_bytes == 0


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "k"), [(F16, 64), (F32, 256), (BF16, 5)])
def test_a_gpu_adds_the_same(dtype: torch.dtype, k: int) -> None:
    own, arrived = terms(k, dtype, 50_000).cuda(), terms(k, dtype, 20_000).cuda()
    rows = torch.randperm(50_000, device="cuda")[:20_000]
    totals = own.clone()
    expected = own.clone()
    expected[rows] = (own[rows].float() + arrived.float()).to(dtype)
    add_rows(own, arrived, rows, totals)
    assert torch.equal(totals, expected)
