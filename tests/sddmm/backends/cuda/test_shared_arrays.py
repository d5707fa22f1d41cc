"""Plans of one pattern share the nonzeros that a kernel has listed."""

from __future__ import annotations

import pytest
import torch

import sddmm
from sddmm.memory import memory_blocks, total_bytes
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import assert_close, emulated_gpu, random_pattern

NNZ = 9_000


def prepared(pattern: SparsePattern, kernel: str, k: int) -> sddmm.Plan:
    return sddmm.plan(pattern, k=k, dtype=torch.float16, kernel=kernel)


def kept(*objects: object) -> int:
    return total_bytes(memory_blocks(*objects))


@pytest.mark.parametrize(
    "kernel", ["tile_wgmma_listed_128x256x64", "tile_wgmma_panel_128x256x64", "windows"]
)
def test_plans_of_two_sizes_of_operands_share_their_list_of_nonzeros(kernel: str) -> None:
    pattern = random_pattern(200, 500, NNZ, layout="csr")
    with emulated_gpu():
        first = prepared(pattern, kernel, 64)
        alone = kept(pattern, first)
        second = prepared(pattern, kernel, 72)
        assert kept(pattern, first, second) < alone + 2 * NNZ  # a list has 8 bytes for each
        for plan, k in ((first, 64), (second, 72)):
            a, b = torch.randn(200, k).half(), torch.randn(k, 500).half()
            assert_close(plan.run(a, b), pattern, a, b)


def test_plans_for_any_number_of_heads_share_a_list() -> None:
    kernel = "tile_wgmma_panel_128x256x64"
    pattern = random_pattern(20_000, 5000, NNZ, layout="csr")
    with emulated_gpu():
        plans = [prepared(pattern, kernel, 64)]
        alone = kept(pattern, *plans)
        for heads in (2, 3, 8):
            plans.append(sddmm.plan(pattern, k=64, dtype=torch.float16, kernel=kernel, heads=heads))
        assert kept(pattern, *plans) < alone + 2 * NNZ
