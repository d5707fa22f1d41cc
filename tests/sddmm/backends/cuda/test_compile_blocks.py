"""The block kernels compile for every architecture we name, without spilling registers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from gemm_core.runtime.compile import CACHE_VARIABLE
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.registry import BLOCK_KERNELS
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.problem import SddmmProblem
from tests.cases import cases
from tests.conftest import H200, shared_folder
from tests.sddmm.backends.cuda.test_compile import DEVICES, Compiler

ALL_DEVICES = {**DEVICES, "sm_100": replace(H200, capability=(10, 0))}
INDEX = torch.zeros(1, dtype=torch.int32)
# k: whole steps of k, a tail, rows at multiples of 8 and of 2 bytes.
SIZES = [64, 40, 100, 33]


@pytest.mark.parametrize(
    ("name", "arch"),
    cases(
        itertools.product(BLOCK_KERNELS, ALL_DEVICES),
        here=[
            (name, arch)
            for name in ("block_mma_16x16", "block_simt_16x16")
            for arch in ("sm_80", "sm_100")
        ],
    ),
)
def test_every_block_kernel_compiles_without_spilling(
    name: str,
    arch: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """On Hopper every dtype and alignment; elsewhere the first of each."""
    kernel, device = BLOCK_KERNELS[name], ALL_DEVICES[arch]
    made = Compiler(device)
    monkeypatch.setattr(loader, "runtime", made)
    monkeypatch.setenv(CACHE_VARIABLE, str(shared_folder(tmp_path_factory, "sddmm-kernels")))
    hopper = arch == "sm_90a"
    for dtype in kernel.dtypes if hopper else kernel.dtypes[:1]:
        for k in SIZES if hopper else SIZES[:1]:
            for out_dtype in {dtype, torch.float32} if k == 64 else {dtype}:
                problem = SddmmProblem(
                    64, 64, k, 64 * 64, dtype, out_dtype, "ieee", torch.int32, None,
                    torch.device("cuda", 0), (64, 64),
                )  # fmt: skip
                assert kernel.refuses(problem, device) is None
                plan = kernel.plan_blocks(Nonzeros(INDEX, INDEX, None), problem, device)
                operand = torch.zeros(64, k, dtype=dtype)
                plan.bind(operand, operand)
    assert made.cubins[name]
    for cubin in made.cubins[name]:
        assert cubin.resources.spill_bytes == 0
        assert cubin.resources.registers <= 255
