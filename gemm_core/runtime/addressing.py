"""The limit on the row pitch of an operand that the kernels' 32-bit offsets set."""

from __future__ import annotations

from torch import Tensor

# A main loop adds 32-bit byte offsets to the address of a tile, which has at most 256 rows.
_MAX_PITCH_BYTES = 2**32 // 256


def fits_32bit_offsets(x: Tensor, pitch: int) -> bool:
    """Whether 32-bit byte offsets reach a whole tile of x, whose row pitch is in elements."""
    return pitch * x.element_size() < _MAX_PITCH_BYTES
