"""send_rows copies the chosen rows of every shape, type and stride, and nothing besides."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.send_rows.host import Parcel, load, refuses, send_rows
from sddmm.testing import H200, emulated_gpu
from tests.cases import cases
from tests.sddmm.backends.cuda.test_compile import DEVICES, Compiler, compiler, own_cache
from tests.sddmm.memory import at_a_cliff

__all__ = ["compiler", "own_cache"]


def chosen(n: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(n + count)
    return torch.randint(n, (count,), generator=generator)


def copied(x: Tensor, rows: Tensor) -> Tensor:
    """What send_rows stores of x, whose target ends at the edge of memory."""
    shape = (*x.shape[:-2], rows.numel(), x.shape[-1])
    target = at_a_cliff(torch.full(shape, torch.nan, dtype=x.dtype))
    send_rows(x, [Parcel(at_a_cliff(rows), target)])
    return target


@pytest.mark.parametrize(
    ("dtype", "k", "count"),
    cases(
        itertools.product(
            (torch.float16, torch.float32, torch.float64), (8, 24, 256, 520, 2048), (1, 5, 300)
        ),
        here=[
            (torch.float16, 8, 5), (torch.float32, 24, 300), (torch.float16, 256, 1),
            (torch.float16, 520, 5), (torch.float64, 256, 300),
        ],
    ),
)  # fmt: skip
@pytest.mark.parametrize("heads", [None, 3])
def test_rows_come_in_the_order_of_their_numbers(
    dtype: torch.dtype, k: int, count: int, heads: int | None
) -> None:
    lead = () if heads is None else (heads,)
    x = at_a_cliff(torch.randn(*lead, 17, k, dtype=torch.float64).to(dtype))
    rows = chosen(17, count)
    with emulated_gpu(H200) as launches:
        assert torch.equal(copied(x, rows), x[..., rows, :])
    assert launches == ["send_rows"]


def test_rows_and_heads_may_lie_apart() -> None:
    x = torch.randn(2, 9, 64)[..., 16:32]
    rows = chosen(9, 20)
    interleaved = torch.randn(9, 2, 32).transpose(0, 1)
    with emulated_gpu(H200) as launches:
        assert torch.equal(copied(x, rows), x[:, rows])
        assert torch.equal(copied(interleaved, rows), interleaved[:, rows])
    assert launches == ["send_rows"] * 2


@pytest.mark.parametrize("targets", [2, 16, 17, 33])
def test_several_targets_have_rows_of_their_own_in_one_launch(targets: int) -> None:
    x = at_a_cliff(torch.randn(40, 24))
    numbers = [chosen(40, count) for count in range(targets)]  # the first ones are none
    parcels = [Parcel(at_a_cliff(rows), torch.full((len(rows), 24), torch.nan)) for rows in numbers]
    with emulated_gpu(H200) as launches:
        send_rows(x, parcels)
    assert all(torch.equal(target, x[rows]) for rows, target in parcels)
    assert len(launches) == -(-(targets - 1) // 16)


@pytest.mark.parametrize("k", [1, 5, 12])
def test_other_rows_are_copied_by_torch(k: int) -> None:
    x, rows = torch.randn(9, k).half(), chosen(9, 20)
    with emulated_gpu(H200) as launches:
        assert "multiples of 16 bytes" in str(refuses(x, [Parcel(rows, x)]))
        assert torch.equal(copied(x, rows), x[rows])
    assert launches == []


def test_no_rows_are_no_launch() -> None:
    with emulated_gpu(H200) as launches:
        assert copied(torch.randn(4, 8), chosen(4, 0)).shape == (0, 8)
    assert launches == []


@pytest.mark.parametrize("arch", cases(DEVICES, here=["sm_90a"]))
def test_it_compiles_without_spilling(arch: str, compiler: Callable[[Device], Compiler]) -> None:
    made = compiler(DEVICES[arch])
    for lanes in (1, 4, 32):
        load(loader.runtime, lanes, DEVICES[arch].index)
    assert len(made.cubins["send_rows"]) == 3
    for cubin in made.cubins["send_rows"]:
        assert cubin.resources.spill_bytes == 0


@pytest.mark.gpu
@pytest.mark.parametrize(("k", "count"), [(256, 100_003), (40, 1000), (8, 7)])
def test_a_gpu_copies_the_same(k: int, count: int) -> None:
    x = torch.randn(2, 5000, k, device="cuda", dtype=torch.float16)
    rows = chosen(5000, count).cuda()
    target = x.new_full((2, count, k), torch.nan)
    others = rows[: count // 2].flip(0)
    parcels = [Parcel(rows, target), Parcel(others, x.new_full((2, count // 2, k), torch.nan))]
    assert refuses(x, parcels) is None
    send_rows(x, parcels)
    assert all(torch.equal(target, x[:, rows]) for rows, target in parcels)
