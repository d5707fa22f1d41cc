"""The kernels of products by tiles compile for every architecture we name, without spills."""

from __future__ import annotations

import pytest
import torch

from gemm_core.runtime.compile import CACHE_VARIABLE
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.spmm_tile.host import SPMM_TILES, SpmmTile
from sddmm.backends.cuda.kernels.spmm_tile_sums import host as spmm_tile_sums
from sddmm.problem import SpmmProblem
from tests.cases import cases
from tests.conftest import shared_folder
from tests.sddmm.backends.cuda.test_compile import Compiler
from tests.sddmm.backends.cuda.test_compile_blocks import ALL_DEVICES


def problems(kernel: SpmmTile) -> list[SpmmProblem]:
    """One for each kind of weights that the kernel takes."""
    halves = SpmmProblem(
        64, 64, kernel.columns, 64, torch.float16, torch.float16, torch.float16, torch.int32, None,
        False, False, torch.device("cuda", 0),
    )  # fmt: skip
    if kernel.dtypes == (torch.float32,):
        floats = halves._replace(dtype=torch.float32, values_dtype=torch.float32)
        return [floats, floats._replace(has_factors=True)]
    if not kernel.float_weights:
        return [halves, halves._replace(dtype=torch.bfloat16, values_dtype=torch.bfloat16)]
    floats = halves._replace(values_dtype=torch.float32, out_dtype=torch.float32)
    products = halves._replace(has_factors=True)
    bfloats = products._replace(dtype=torch.bfloat16, values_dtype=torch.bfloat16)
    return [products, bfloats, floats, floats._replace(has_factors=True)]


@pytest.mark.parametrize("arch", cases(ALL_DEVICES, here=["sm_80"]))
@pytest.mark.parametrize("kernel", SPMM_TILES, ids=lambda kernel: kernel.name)
def test_every_kind_of_weights_compiles_without_spilling(
    kernel: SpmmTile,
    arch: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Stored by row and by column, permuted, and with rows of X that start anywhere. On Hopper all
    kinds of weights, elsewhere one of each kernel."""
    device = ALL_DEVICES[arch]
    made = Compiler(device)
    monkeypatch.setattr(loader, "runtime", made)
    monkeypatch.setenv(CACHE_VARIABLE, str(shared_folder(tmp_path_factory, "sddmm-kernels")))
    orders = ((False, False, True), (False, True, True), (True, False, False))
    most = 3 if arch == "sm_90a" else 2
    for i, problem in enumerate(problems(kernel)):
        assert kernel.refuses(problem, device) is None
        if i > 0 and arch != "sm_90a":
            continue
        for permuted, by_column, aligned in orders[: most if i == 0 else most - 1]:
            kernel.load(problem, permuted, by_column, aligned, device)
            if not (permuted or kernel.float_weights) and (arch == "sm_90a" or by_column):
                kernel.load(problem, permuted, by_column, aligned, device, is_full=True)
        spmm_tile_sums.load(problem.out_dtype, kernel.columns, device.index, kernel.side)
    assert made.cubins[kernel.name]
    for cubins in made.cubins.values():
        assert all(cubin.resources.spill_bytes == 0 for cubin in cubins)
