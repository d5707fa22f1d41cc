"""Where the elements of matrices lie: the limit that 32-bit offsets set, and shared memory."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

# A main loop adds 32-bit byte offsets to the address of a tile, which has at most 256 rows.
# Neighbouring rows must be fewer bytes apart than this.
MAX_PITCH_BYTES = 2**32 // 256


def fits_32bit_offsets(x: Tensor, pitch: int) -> bool:
    """Whether 32-bit byte offsets reach a whole tile of x, whose row pitch is in elements."""
    return pitch * x.element_size() < MAX_PITCH_BYTES


class Rows(NamedTuple):
    """The memory of a matrix from its address on: rows of `width` bytes, `pitch` bytes apart.

    extent: the bytes from the first element to the last.
    """

    width: int
    pitch: int
    extent: int

    @classmethod
    def of(cls, x: Tensor) -> Rows:
        """The stored rows of a matrix, which are its columns where those lie closer together."""
        stored = x.T if x.stride(1) > x.stride(0) else x
        (rows, columns), (pitch, step), size = stored.shape, stored.stride(), x.element_size()
        width = ((columns - 1) * step + 1) * size
        return cls(width, pitch * size, (rows - 1) * pitch * size + width)

    def meet(self, address: int, other: Rows, other_address: int) -> bool:
        """Whether rows at an address share a byte with other rows; those between them do not.

        True in doubt, which is where their pitches differ. The address of an empty tensor is 0.
        """
        if not (address and other_address):
            return False
        if address >= other_address + other.extent or other_address >= address + self.extent:
            return False
        if self.pitch != other.pitch or self.pitch == 0:
            return True
        offset = (other_address - address) % self.pitch
        return offset < self.width or offset + other.width > self.pitch
