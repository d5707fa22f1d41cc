"""The kernels that stand for all in `make test`: the smallest of each source and precision."""

from __future__ import annotations

from sddmm.backends.cuda.kernels.registry import SPECS
from sddmm.backends.cuda.spec import KernelSpec

__all__ = ["ONE_OF_EACH_SOURCE"]


def _names() -> dict[object, str]:
    found: dict[object, str] = {}
    for spec in sorted(SPECS.values(), key=lambda spec: spec.tile[0] * spec.tile[1]):
        found.setdefault((spec.path, spec.precision), spec.name)
    return found


# By name. The smallest tile compiles and runs fastest.
ONE_OF_EACH_SOURCE: dict[str, KernelSpec] = {name: SPECS[name] for name in _names().values()}
