"""Which lane of a warp holds which element of a matrix fragment.

A tensor-core instruction distributes a matrix over the registers of a warp (or, for wgmma, of four
warps). A `FragmentLayout` maps both ways: `position(lane, element)` is the matrix (row, column) of
an element and `owner(row, column)` the (lane, element) of a matrix entry. Both accept integers or
numpy arrays of any (broadcastable) shape and return int64 arrays.

Throughout, g = lane >> 2 is the group of four lanes and t = lane & 3 the lane within it.
Sources: the PTX ISA, "Matrix Fragments for mma.m16n8k8 / m16n8k16", "ldmatrix", "Register
Fragments and Shared Memory Matrix Layouts" of wgmma; the WMMA accumulators, which CUDA does not
specify, from a raw dump of their values (tests/data/wmma_accumulator_dump.csv).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Indices: TypeAlias = "NDArray[np.int64]"
Formula = Callable[[Any, Any], tuple[Any, Any]]


def _checked(values: ArrayLike, name: str, bound: int) -> Indices:
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got {array.dtype}")
    if array.size and (array.min() < 0 or array.max() >= bound):
        raise ValueError(
            f"{name} must lie in 0..{bound - 1}, got values in {array.min()}..{array.max()}"
        )
    return array.astype(np.int64)


@dataclass(frozen=True)
class FragmentLayout:
    """The layout of one operand of one instruction: a rows x columns matrix over lanes x elements.

    `axes` names the matrix axes ("m", "n", "k"); `formula(lane, element)` is vectorised.
    """

    name: str
    rows: int
    columns: int
    lanes: int
    elements: int
    axes: tuple[str, str]
    formula: Formula

    def position(self, lane: ArrayLike, element: ArrayLike) -> tuple[Indices, Indices]:
        """The (row, column) of the matrix entry in `element` of `lane`."""
        lane = _checked(lane, "lane", self.lanes)
        element = _checked(element, "element", self.elements)
        row, column = np.broadcast_arrays(*self.formula(lane, element))
        return row.astype(np.int64), column.astype(np.int64)

    def owner(self, row: ArrayLike, column: ArrayLike) -> tuple[Indices, Indices]:
        """The (lane, element) of the matrix entry (row, column)."""
        row = _checked(row, "row", self.rows)
        column = _checked(column, "column", self.columns)
        slot = _slot_of_entry(self)[row, column]
        return slot // self.elements, slot % self.elements

    def scatter(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """The fragment, (lanes, elements), of a (rows, columns) matrix."""
        if matrix.shape != (self.rows, self.columns):
            raise ValueError(
                f"{self.name} holds a {self.rows}x{self.columns} matrix, got shape {matrix.shape}"
            )
        return matrix[self._grid()]

    def gather(self, fragment: NDArray[Any]) -> NDArray[Any]:
        """The (rows, columns) matrix of a fragment of shape (lanes, elements)."""
        if fragment.shape != (self.lanes, self.elements):
            raise ValueError(
                f"{self.name} has {self.lanes} lanes x {self.elements} elements, "
                f"got shape {fragment.shape}"
            )
        matrix = np.empty((self.rows, self.columns), fragment.dtype)
        matrix[self._grid()] = fragment
        return matrix

    def _grid(self) -> tuple[Indices, Indices]:
        return self.position(np.arange(self.lanes)[:, None], np.arange(self.elements)[None, :])


@cache
def _slot_of_entry(layout: FragmentLayout) -> Indices:
    """slot[row, column] = lane * elements + element: the inverse of `position`."""
    slots = np.arange(layout.lanes * layout.elements).reshape(layout.lanes, layout.elements)
    return layout.gather(slots)


def _wmma_m16n16(lane: Any, i: Any) -> tuple[Any, Any]:
    return (lane >> 2) + 8 * ((i >> 1) & 1), 2 * (lane & 3) + (i & 1) + 8 * (i >> 2)


def _c_m16n8(lane: Any, i: Any) -> tuple[Any, Any]:
    """Also wmma m32n8, which continues the same formula to eight elements."""
    return (lane >> 2) + 8 * (i >> 1), 2 * (lane & 3) + (i & 1)


def _wmma_m8n32(lane: Any, i: Any) -> tuple[Any, Any]:
    row, column = _c_m16n8(lane, i)
    return column, row


def _b_k16n8(lane: Any, i: Any) -> tuple[Any, Any]:
    return 2 * (lane & 3) + (i & 1) + 8 * (i >> 1), lane >> 2


def _a_m16k8_tf32(lane: Any, i: Any) -> tuple[Any, Any]:
    return (lane >> 2) + 8 * (i & 1), (lane & 3) + 4 * (i >> 1)


def _b_k8n8_tf32(lane: Any, i: Any) -> tuple[Any, Any]:
    return (lane & 3) + 4 * i, lane >> 2


def _warpgroup(formula: Formula) -> Formula:
    """A warp's 16-row layout repeated down the four warps of a warpgroup."""

    def position(lane: Any, i: Any) -> tuple[Any, Any]:
        row, column = formula(lane % 32, i)
        return 16 * (lane // 32) + row, column

    return position


def wgmma_accumulator(n: int) -> FragmentLayout:
    """D of wgmma.m64nNk16 (f32): 128 lanes of N/2 elements. N is a multiple of 8 in 8..256."""
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"n must be a multiple of 8 in 8..256, got {n}")
    formula = _warpgroup(_wmma_m16n16)
    return FragmentLayout(f"wgmma_m64n{n}_d", 64, n, 128, n // 2, ("m", "n"), formula)


def _ldmatrix_data(lane: Any, j: Any) -> tuple[Any, Any]:
    """Register j holds two halves of 8x8 matrix j; element 2j + h is half h of it."""
    return 8 * (j >> 1) + (lane >> 2), 2 * (lane & 3) + (j & 1)


def _ldmatrix_data_trans(lane: Any, j: Any) -> tuple[Any, Any]:
    return 8 * (j >> 1) + 2 * (lane & 3) + (j & 1), lane >> 2


_C, _A, _B = ("m", "n"), ("m", "k"), ("k", "n")

LAYOUTS: dict[str, FragmentLayout] = {
    layout.name: layout
    for layout in (
        FragmentLayout("m16n16k16", 16, 16, 32, 8, _C, _wmma_m16n16),
        FragmentLayout("m32n8k16", 32, 8, 32, 8, _C, _c_m16n8),
        FragmentLayout("m8n32k16", 8, 32, 32, 8, _C, _wmma_m8n32),
        FragmentLayout("mma_m16n8k16_c", 16, 8, 32, 4, _C, _c_m16n8),
        FragmentLayout("mma_m16n8k16_a", 16, 16, 32, 8, _A, _wmma_m16n16),
        FragmentLayout("mma_m16n8k16_b", 16, 8, 32, 4, _B, _b_k16n8),
        FragmentLayout("mma_m16n8k8_c", 16, 8, 32, 4, _C, _c_m16n8),
        FragmentLayout("mma_m16n8k8_a", 16, 8, 32, 4, _A, _c_m16n8),
        FragmentLayout("mma_m16n8k8_b", 8, 8, 32, 2, _B, _b_k16n8),
        FragmentLayout("mma_m16n8k8_tf32_a", 16, 8, 32, 4, _A, _a_m16k8_tf32),
        FragmentLayout("mma_m16n8k8_tf32_b", 8, 8, 32, 2, _B, _b_k8n8_tf32),
        # x4: the four 8x8 matrices are stacked, matrix j as rows 8j .. 8j+7. stmatrix stores from
        # the same registers.
        FragmentLayout("ldmatrix_x1", 8, 8, 32, 2, ("row", "column"), _ldmatrix_data),
        FragmentLayout("ldmatrix_x2", 16, 8, 32, 4, ("row", "column"), _ldmatrix_data),
        FragmentLayout("ldmatrix_x4", 32, 8, 32, 8, ("row", "column"), _ldmatrix_data),
        FragmentLayout("ldmatrix_x1_trans", 8, 8, 32, 2, ("row", "column"), _ldmatrix_data_trans),
        FragmentLayout("ldmatrix_x2_trans", 16, 8, 32, 4, ("row", "column"), _ldmatrix_data_trans),
        FragmentLayout("ldmatrix_x4_trans", 32, 8, 32, 8, ("row", "column"), _ldmatrix_data_trans),
        FragmentLayout("wgmma_m64k16_a", 64, 16, 128, 8, _A, _warpgroup(_wmma_m16n16)),
        *(wgmma_accumulator(n) for n in (8, 16, 32, 64, 96, 128, 192, 256)),
    )
}


def layout(name: str) -> FragmentLayout:
    """The layout called `name`; `wgmma_m64nN_d` exists for every legal N."""
    prefix, suffix = "wgmma_m64n", "_d"
    width = name.removeprefix(prefix).removesuffix(suffix)
    if name == f"{prefix}{width}{suffix}" and width.isdecimal():
        return wgmma_accumulator(int(width))
    if name not in LAYOUTS:
        raise ValueError(f"unknown layout {name!r}; choose from: {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def ldmatrix_address(lane: ArrayLike, operand: str = "a") -> tuple[Indices, Indices]:
    """(row, column) of the 16-byte row that `lane` passes to ldmatrix.x4 (or stmatrix.x4).

    The 16x16 block of halves is stored
      "a": A row-major (m, k), or B row-major (k, n) read with .trans;
      "b": B stored as (n, k) rows, read without .trans (two n-blocks of 8).
    Lanes 8j .. 8j+7 supply the rows of matrix j.
    """
    lane = _checked(lane, "lane", 32)
    if operand == "a":
        return lane % 16, 8 * (lane // 16)
    if operand == "b":
        return lane % 8 + 8 * (lane // 16), 8 * (lane // 8 % 2)
    raise ValueError(f"operand must be 'a' or 'b', got {operand!r}")


def swizzle_128b(byte: ArrayLike) -> Indices:
    """The position of `byte` of a tile of 128-byte rows under the 128-byte swizzle (self-inverse).

    Within each atom of 1024 bytes the 16-byte column is XORed with the row; the tile's base must
    be 1024-byte aligned. CUTLASS calls it Swizzle<3, 4, 3>, TMA CU_TENSOR_MAP_SWIZZLE_128B.
    """
    byte = _checked(byte, "byte", 2**62)
    return byte ^ (((byte >> 7) & 7) << 4)


def as_table(layout: FragmentLayout) -> str:
    """The matrix as a text table; each cell shows lane:element."""
    row, column = np.indices((layout.rows, layout.columns))
    lanes, elements = layout.owner(row, column)
    width = max(4, len(f"{layout.lanes - 1}:{layout.elements - 1}"))
    head = f"{layout.axes[0]}\\{layout.axes[1]}"
    edge = max(len(head), 3)
    lines = [
        f"{layout.name}: {layout.rows}x{layout.columns} ({layout.axes[0]} x {layout.axes[1]}) over "
        f"{layout.lanes} lanes x {layout.elements} elements; a cell is lane:element",
        head.rjust(edge) + " |" + "".join(f" {c:>{width}}" for c in range(layout.columns)),
        "-" * edge + "-+" + "-" * ((width + 1) * layout.columns),
    ]
    for r in range(layout.rows):
        cells = (f"{lane}:{e}" for lane, e in zip(lanes[r], elements[r], strict=True))
        lines.append(f"{r:>{edge}} |" + "".join(f" {cell:>{width}}" for cell in cells))
    return "\n".join(lines)
