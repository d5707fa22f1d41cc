"""Which attention weights are dropped in each part of a distributed matrix."""

from __future__ import annotations

from torch import Tensor

# An odd number far from any power of two: its multiples differ in all bits.
_STEP = 0x9E3779B97F4A7C15


def seed_of_part(seed: Tensor | None, place: int, part: int) -> Tensor | None:
    """The seed, (1,) int64, of a part of the rank at `place`: of a panel, or of a slice's head.

    `sddmm/dropout.py` counts nonzeros and heads within a part, so parts must not share a seed, also
    where all ranks draw the same one. None without dropout.
    """
    if seed is None:
        return None
    step = ((place << 32) + part + 1) * _STEP % 2**64
    return seed + (step - 2**64 if step >= 2**63 else step)  # wraps around
