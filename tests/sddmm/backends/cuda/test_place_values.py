"""place_values stores each value where its nonzero stands, and changes no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gemm_core.runtime.device import Device
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.place_values.host import load, place_values
from sddmm.dtypes import DTYPES
from sddmm.testing import H200, emulated_gpu
from tests.cases import cases
from tests.sddmm.backends.cuda.test_compile import DEVICES, Compiler, compiler, own_cache
from tests.sddmm.memory import at_a_cliff

__all__ = ["compiler", "own_cache"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize(("count", "nnz"), [(1, 1), (700, 2500), (2048, 2048), (2049, 4000)])
def test_values_come_to_their_places(
    dtype: torch.dtype, heads: int | None, count: int, nnz: int
) -> None:
    lead = () if heads is None else (heads,)
    generator = torch.Generator().manual_seed(count)
    places = torch.randperm(nnz, generator=generator)[:count]
    part = at_a_cliff(torch.randn(*lead, count, generator=generator).to(dtype))
    values = at_a_cliff(torch.full((*lead, nnz), 7.0, dtype=dtype))
    expected = values.clone()
    expected[..., places] = part
    with emulated_gpu(H200) as launches:
        place_values(part, at_a_cliff(places.int()), values)
    assert torch.equal(values, expected)
    assert launches == ["place_values"]


def test_no_values_are_no_launch() -> None:
    with emulated_gpu(H200) as launches:
        place_values(torch.zeros(0), torch.zeros(0, dtype=torch.int32), torch.zeros(4))
    assert launches == []


@pytest.mark.parametrize("arch", cases(DEVICES, here=["sm_90a"]))
def test_it_compiles_without_spilling(arch: str, compiler: Callable[[Device], Compiler]) -> None:
    made = compiler(DEVICES[arch])
    for dtype in DTYPES:
        load(loader.runtime, dtype, DEVICES[arch].index)
    assert len(made.cubins["place_values"]) == len(DTYPES)
    for cubin in made.cubins["place_values"]:
        assert cubin.resources.spill_bytes == 0


@pytest.mark.gpu
def test_a_gpu_stores_the_same() -> None:
    places = torch.randperm(3_000_000, device="cuda")[:1_000_001]
    part = torch.randn(2, 1_000_001, device="cuda").half()
    values = part.new_zeros(2, 3_000_000)
    expected = values.clone()
    expected[:, places] = part
    place_values(part, places.int(), values)
    assert torch.equal(values, expected)
