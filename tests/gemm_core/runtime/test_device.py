"""What the runtime derives from a GPU's compute capability."""

from __future__ import annotations

from gemm_core.runtime.device import arch_of, format_capability


def test_hopper_is_compiled_for_with_its_own_instructions() -> None:
    assert arch_of((9, 0)) == "sm_90a"
    assert arch_of((8, 9)) == "sm_89"
    assert arch_of((10, 0)) == "sm_100"


def test_a_capability_is_written_as_nvidia_writes_it() -> None:
    assert format_capability((10, 3)) == "10.3"
