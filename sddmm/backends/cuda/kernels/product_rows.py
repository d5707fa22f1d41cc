"""How kernels of products read rows of X and store rows of the result (product_rows.cuh)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from gemm_core.arithmetic import ceil_div
from sddmm.backends.base import Addend
from sddmm.backends.cuda.spec import type_macros
from sddmm.dtypes import DTYPES

if TYPE_CHECKING:
    from sddmm.problem import SpmmProblem

LANE_BYTES, MAX_LANES = 16, 32
"""The bytes that a lane loads of a row, and the most lanes that share a row."""

# The time of a nonzero that does not depend on the bytes of its row, in bytes of it; and the most
# lanes that always load a row whole (both on an H200).
_NONZERO_BYTES, _WHOLE_ROW_LANES = 24, 16

# The most bytes from row to row of X that the kernels can step over.
_MAX_PITCH_BYTES = 2**31 - 1


class Slices(NamedTuple):
    """How rows of X are cut: slices of so many columns, which so many lanes load."""

    lanes: int
    columns: int
    number: int


def slices_of(problem: SpmmProblem) -> Slices:
    """How rows of X are cut."""
    itemsize = problem.dtype.itemsize
    lanes = lanes_of_row(problem.k, itemsize)
    columns = lanes * LANE_BYTES // itemsize
    return Slices(lanes, columns, ceil_div(problem.k, columns))


@functools.lru_cache(maxsize=1024)
def lanes_of_row(k: int, itemsize: int) -> int:
    """The lanes that load a slice of a row together: as many as load the whole row, a power of two;
    of longer rows those that cost the fewest bytes. More slices of fewer bytes each would read the
    indices again, and rows of X by parts of lines: on an H200 they take up to 1.7 times as long."""
    chunks = ceil_div(k * itemsize, LANE_BYTES)
    if chunks <= _WHOLE_ROW_LANES:
        return 1 << (max(1, chunks) - 1).bit_length()

    def cost(lanes: int) -> int:
        return ceil_div(chunks, lanes) * (lanes * LANE_BYTES + _NONZERO_BYTES)

    return min((_WHOLE_ROW_LANES, MAX_LANES), key=cost)


class Access(NamedTuple):
    """What a kernel is compiled for: rows of X that start at multiples of `step` bytes, rows of the
    result that start at multiples of `step_out`, and whether there are `beyond` and `addend`."""

    step: int
    step_out: int
    has_beyond: bool = False
    has_addend: bool = False


class RowAddresses(NamedTuple):
    """Addresses of X, its last rows, the result and the addend, as the launches take them; bytes
    from row to row of X, and elements from head to head."""

    access: Access
    dense: int
    beyond: int
    out: int
    addend: int
    out_rows: int
    pitch_bytes: int
    pitch_beyond: int
    head_dense: int

    @classmethod
    def of(
        cls, problem: SpmmProblem, dense: Tensor, out: Tensor, beyond: Tensor | None,
        addend: Addend | None,
    ) -> RowAddresses:  # fmt: skip
        k, size = problem.k, dense.element_size()
        pitch_bytes = dense.stride(-2) * size
        head_dense = 0 if problem.heads is None else dense.stride(0)
        address, address_out = dense.data_ptr(), out.data_ptr()
        address_beyond, pitch_beyond = 0, 0
        if beyond is not None:
            address_beyond, pitch_beyond = beyond.data_ptr(), beyond.stride(-2) * size
        sums, out_rows = 0, 0
        if addend is not None:
            sums, out_rows = addend.sums.data_ptr(), addend.out_rows.data_ptr()
        sizes = pitch_bytes | pitch_beyond | head_dense * size | k * size
        access = Access(
            _common_step(address | address_beyond, sizes),
            _common_step(address_out, k * out.element_size()),
            beyond is not None,
            addend is not None,
        )
        return cls(
            access, address, address_beyond, address_out, sums, out_rows, pitch_bytes, pitch_beyond,
            head_dense,
        )  # fmt: skip


def _common_step(first: int, sizes: int) -> int:
    """The largest power of two, up to 16, that divides an address and several sizes, which are
    given as one number with the bits of all."""
    bits = first | sizes | LANE_BYTES
    return bits & -bits


def is_readable(dense: Tensor) -> bool:
    """Whether rows are contiguous, and near enough to each other."""
    if dense.shape[-1] > 1 and dense.stride(-1) != 1:
        return False
    return 0 <= dense.stride(-2) * dense.element_size() <= _MAX_PITCH_BYTES


def row_macros(problem: SpmmProblem, access: Access, has_perm: bool) -> dict[str, str | int | bool]:
    """The macros of a kernel that reads and stores such rows, and weights as a problem has them."""
    slices = slices_of(problem)
    is_aligned = access.step == LANE_BYTES
    return {
        **type_macros(problem.dtype, problem.out_dtype),
        "VALUE": DTYPES[problem.values_dtype].cpp_name, "HAS_FACTORS": problem.has_factors,
        "HAS_PERM": has_perm, "LOAD_BYTES": access.step, "STORE_BYTES": access.step_out,
        "HAS_BEYOND": access.has_beyond, "HAS_ADDEND": access.has_addend,
        "NO_TAIL": is_aligned and problem.k % slices.columns == 0, "LANES": slices.lanes,
    }  # fmt: skip
