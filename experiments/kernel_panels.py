"""What the pictures of the kernels show: one panel for each family of GPU kernels.

A drawn matrix has 12 rows and 18 columns. On its left is the operand whose rows are the matrix's
rows, above it the operand whose rows are the matrix's columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ROWS, COLUMNS = 12, 18
Cells = tuple[tuple[int, ...], ...]

# Every row holds nonzeros at these columns; a pattern that fills no tile.
SCATTERED: Cells = (
    (1, 4, 9, 15), (0, 6, 7, 13), (3, 8, 11), (2, 5, 10, 16), (1, 7, 12, 17), (4, 6, 9, 14),
    (0, 3, 8, 13, 15), (5, 7, 11), (2, 6, 10, 12, 16), (1, 4, 8, 14), (3, 9, 11, 17), (0, 5, 7, 13),
)  # fmt: skip


def _filled(*blocks: tuple[int, int, int, int], others: Cells = ((),) * ROWS) -> Cells:
    """Full blocks (first row, first column, rows, columns), and other nonzeros."""
    cells = [set(columns) for columns in others]
    for row, column, rows, columns in blocks:
        for index in range(row, row + rows):
            cells[index] |= set(range(column, column + columns))
    return tuple(tuple(sorted(columns)) for columns in cells)


BLOCKS = _filled((0, 0, 4, 6), (0, 12, 4, 6), (4, 6, 4, 6), (8, 0, 4, 6), (8, 6, 4, 6))
SMALL_TILES = _filled((0, 0, 3, 3), (3, 6, 3, 3), (3, 12, 3, 3), (6, 3, 3, 3), (9, 15, 3, 3))
MIXED = _filled((4, 6, 4, 6), others=(*SCATTERED[:10], (1, 4, 14, 17), SCATTERED[11]))


@dataclass(frozen=True)
class Span:
    """Rows or columns first .. last - 1 of the drawn matrix, and the memory that holds them."""

    first: int
    last: int
    memory: str = ""

    def __contains__(self, index: int) -> bool:
        return self.first <= index < self.last


@dataclass(frozen=True)
class Panel:
    """One family of kernels: its unit of work, where its operands are kept, what limits it.

    work: rectangles of the matrix, as (rows, columns). l2, shared, registers: what each memory
    holds for the unit. to_shared, to_registers: how it gets there.
    """

    unit: str
    work: tuple[tuple[Span, Span], ...]
    rows: tuple[Span, ...]
    columns: tuple[Span, ...]
    l2: str
    registers: str
    limit: str
    to_registers: str
    shared: str = ""
    to_shared: str = ""
    operands: tuple[str, str] = ("A", "B")
    nonzeros: Cells = field(default=SCATTERED, repr=False)


def _rectangle(rows: tuple[int, int], columns: tuple[int, int]) -> tuple[Span, Span]:
    return Span(*rows), Span(*columns)


def _in(memory: str, *spans: tuple[int, int]) -> tuple[Span, ...]:
    return tuple(Span(*span, memory) for span in spans)


def _each(memory: str, columns: tuple[int, ...]) -> tuple[Span, ...]:
    return _in(memory, *((column, column + 1) for column in columns))


_TILE = (_rectangle((4, 8), (6, 12)),)
_TILE_IN_SHARED = (_in("shared", (4, 8)), _in("shared", (6, 12)))
_LISTED = "the operands' rows; of S the first nonzero of each row of a tile"

PANELS: dict[str, Panel] = {
    "row_gather": Panel(
        "one warp: consecutive nonzeros, 8 to 32 at a time, eight lanes to a nonzero, or four",
        (_rectangle((6, 7), (0, COLUMNS)),),
        _in("registers", (6, 7)), _each("l2", SCATTERED[6]),
        l2="one row of B for every nonzero",
        registers="the row of A, as long as it stays the same; the sums",
        to_registers="a line of a row at a time, or half of it; half types go to mma.m16n8k16",
        limit="one row of B per nonzero out of L2",
    ),
    "gather_lines": Panel(
        "one warp: up to 32 consecutive nonzeros, eight to eight lanes, a line of each at a time",
        (_rectangle((6, 7), (0, COLUMNS)),),
        _in("registers", (6, 7)), _each("l2", SCATTERED[6]),
        l2="one row of B for every nonzero; L1 has some of them",
        registers="a line of two rows of A and of six of B; the sums",
        to_registers="the same line of all rows, then the next",
        limit="the rows of B out of L2 that are not found in L1",
    ),
    "windows": Panel(
        "one block of 16 warps: pairs of nonzeros of one row, in a window of columns",
        (_rectangle((0, ROWS), (6, 12)),),
        _in("registers", (6, 7)), _in("shared", (6, 12)),
        l2="one row of A for every row and window",
        shared="the window's rows of B, or a slice of each: up to 227 KiB",
        registers="the rows of A of the next eight pairs; the sums",
        to_shared="once per block, by cp.async", to_registers="four lanes to a pair",
        limit="L1 and shared memory: two rows of B and one of A per pair",
    ),
    "tile_mma": Panel(
        "one block of 2 x 2 warps: one tile of 128 x 128 or 64 x 64, whole",
        _TILE, *_TILE_IN_SHARED,
        l2=_LISTED,
        shared="three stages of both operands, swizzled; after the main loop the sums",
        registers="the tile's sums, as fragments",
        to_shared="cp.async, one stage of k after the other", to_registers="ldmatrix, mma.sync",
        limit="the tensor cores' rate for whole tiles, however few nonzeros they hold",
    ),
    "tile_wmma": Panel(
        "one block of eight warps: one tile, whole, in the three fragment shapes of WMMA",
        _TILE, *_TILE_IN_SHARED,
        l2=_LISTED,
        shared="three stages of both operands, rows padded by 8 elements; then the sums",
        registers="the tile's sums, as WMMA fragments",
        to_shared="cp.async, one stage of k after the other", to_registers="wmma::load_matrix_sync",
        limit="the tensor cores' rate for whole tiles, however few nonzeros they hold",
    ),
    "tile_simt": Panel(
        "one block: one tile of 64 x 64 or 128 x 128, whole, by multiply-adds",
        _TILE, *_TILE_IN_SHARED,
        l2=_LISTED,
        shared="stages of both operands; after the main loop the sums",
        registers="32 to 128 sums a thread; its elements of A and B of one k and the next",
        to_shared="cp.async", to_registers="one column of A's tile, one row of B's",
        limit="what shared memory delivers, and the banks of the register file",
    ),
    "tile_warp": Panel(
        "one warp: up to four tiles of 16 x 16 or 32 x 32, mostly of the same rows",
        (_rectangle((3, 6), (6, 9)), _rectangle((3, 6), (12, 15))),
        _in("registers", (3, 6)), _in("registers", (6, 9), (12, 15)),
        l2="the operands' rows; of S the first nonzero of a row and a mask of its columns",
        registers="a tile's rows of A and B, up to 256 bytes of each at a time; its sums",
        to_registers="four lanes load 64 bytes of a row",
        limit="L2: a row serves only the 16 or 32 entries of a tile's row or column",
        nonzeros=SMALL_TILES,
    ),
    "tile_wgmma": Panel(
        "a cluster of two blocks: two neighbouring tiles, then the next two",
        (_rectangle((0, 4), (6, 12)), _rectangle((4, 8), (6, 12))),
        _in("shared", (0, 4), (4, 8)), _in("shared", (6, 9), (9, 12)),
        l2="each block loads half of the rows of B, for both",
        shared="four stages of both operands; for each warp a part of its sums",
        registers="the sums: 64 or 128 rows per warpgroup",
        to_shared="one thread, by TMA with multicast", to_registers="wgmma reads shared memory",
        limit="the tensor cores at the card's power; the sums' way through shared memory",
    ),
    "tile_wgmma_async": Panel(
        "a cluster of two blocks: two warpgroups multiply while three warps store",
        (_rectangle((0, 4), (6, 12)), _rectangle((4, 8), (6, 12))),
        _in("shared", (0, 4), (4, 8)), _in("shared", (6, 9), (9, 12)),
        l2="each block loads half of the rows of B, for both",
        shared="three stages of both operands; slots of 32 rows of sums",
        registers="the next tile's sums; the columns that the three warps sample",
        to_shared="one thread, by TMA with multicast", to_registers="wgmma reads shared memory",
        limit="the instructions of the three storing warps; the card's power",
    ),
    "tile_wgmma_listed": Panel(
        "a cluster of two blocks: two warpgroups multiply while three warps store by lists",
        (_rectangle((0, 4), (6, 12)), _rectangle((4, 8), (6, 12))),
        _in("shared", (0, 4), (4, 8)), _in("shared", (6, 9), (9, 12)),
        l2="each block loads half of the rows of B, for both; where each sum is and goes",
        shared="three stages of both operands; slots of 32 rows of sums; entries",
        registers="the next tile's sums; the entries that the three warps sample",
        to_shared="one thread, by TMA with multicast", to_registers="wgmma reads shared memory",
        limit="shared memory, which wgmma, TMA and sums share; the card's power",
    ),
    "tile_wgmma_panel": Panel(
        "one block: the tiles of 256 columns, one after the other",
        (_rectangle((0, 4), (6, 12)), _rectangle((4, 8), (6, 12)), _rectangle((8, 12), (6, 12))),
        _in("shared", (4, 6), (6, 8)), _in("shared", (6, 12)),
        l2="the rows of A, for each tile; where each sum is and goes",
        shared="256 whole rows of B; stages of 64 rows of A; slots of 32 rows of sums; entries",
        registers="the sums of 64 rows per warpgroup, of which one multiplies at a time",
        to_shared="one thread, by TMA: B for a column, A for each tile",
        to_registers="wgmma reads shared memory",
        limit="the instructions of the three storing warps; the card's power",
    ),
    "tile_wgmma_tf32x3": Panel(
        "one block of four warpgroups: one tile of 128 x 128, float32 as 3xTF32",
        _TILE, *_TILE_IN_SHARED,
        l2=_LISTED,
        shared="stages of A and of the large and the small part of B; then the sums",
        registers="the sums, and both parts of A",
        to_shared="two warpgroups load, and split B once per block",
        to_registers="two warpgroups split A on its way and multiply",
        limit="a third of the tensor cores' TF32 rate, and shared memory",
    ),
    "hybrid": Panel(
        "two launches: a tile kernel for the full tiles, row_gather for the rest",
        (*_TILE, _rectangle((10, 11), (0, COLUMNS))),
        (*_in("shared", (4, 8)), *_in("registers", (10, 11))),
        (*_in("shared", (6, 12)), *_each("l2", (1, 4, 14, 17))),
        l2="for the rest, one row of B per nonzero",
        shared="what the tile kernel keeps of a tile's rows",
        registers="the sums of either part",
        to_shared="as the tile kernel", to_registers="as either part",
        limit="two launches; those of its parts",
        nonzeros=MIXED,
    ),
    "block_mma": Panel(
        "one warp: a part of a tile of a full block, at most 32 x 64",
        _TILE, _in("registers", (4, 8)), _in("registers", (6, 12)),
        l2="the operands' rows; of S the indices of blocks alone",
        registers="rows of A and B, 64 or 32 elements of k, as fragments; the sums",
        to_registers="16 bytes a lane, which feed two instructions as they are",
        limit="the stores of the values, and rows out of L2",
        nonzeros=BLOCKS,
    ),
    "block_simt": Panel(
        "one block of threads: one tile of a full block, in exact float32",
        _TILE, *_TILE_IN_SHARED,
        l2="the operands' rows; of S the indices of blocks alone",
        shared="two buffers of 16 elements of k of both operands",
        registers="the tile's sums, stored from here as they are",
        to_shared="cp.async", to_registers="one column of A's tile, one row of B's",
        limit="one multiply-add per lane and clock",
        nonzeros=BLOCKS,
    ),
    "spmm_gather": Panel(
        "one warp: about equally many nonzeros and rows of W as every other warp",
        (_rectangle((5, 8), (0, COLUMNS)),),
        _in("registers", (6, 7)),
        _each("l2", SCATTERED[6]),
        l2="one row of X for every nonzero",
        registers="the sums of one row of the result, until the row of W ends",
        to_registers="16 bytes a lane; weights through a permutation if W is transposed",
        limit="one row of X per nonzero out of L2",
        operands=("W X", "X"),
    ),
    "spmm_tile": Panel(
        "one block: the tiles of 64 rows of W, one after the other",
        (_rectangle((4, 8), (0, 6)), _rectangle((4, 8), (6, 12)), _rectangle((4, 8), (12, 18))),
        _in("registers", (4, 8)), _in("shared", (6, 12)),
        l2="the rows of X; the weights; a bit mask for each line of a tile",
        shared="stages of 64 rows of X; two tiles of 64 x 64 weights, with zeros",
        registers="the sums of 64 rows of the result",
        to_shared="X by cp.async; weights through registers, by the masks of their lines",
        to_registers="mma.sync; multiply-adds for float32",
        limit="the instructions of a tile, however few nonzeros it holds",
        operands=("W X", "X"),
    ),
    "spmm_windows": Panel(
        "eight lanes: rows of W, one after the other, in a window of columns",
        (_rectangle((4, 8), (6, 12)),),
        _in("registers", (6, 7)), _in("shared", (6, 12)),
        l2="the weights by window; the sums of each row and window",
        shared="the window's rows of X, or a slice of 128 bytes of each",
        registers="the sums of one row of the window; eight nonzeros and the next",
        to_shared="once per window and slice, by cp.async", to_registers="16 bytes a lane",
        limit="shared memory: a slice of a row of X per nonzero",
        operands=("W X", "X"),
    ),
    "attention_gather": Panel(
        "one warp: about equally many nonzeros and rows of S as every other warp",
        (_rectangle((5, 8), (0, COLUMNS)),),
        _in("registers", (6, 7)),
        _each("l2", SCATTERED[6]),
        l2="one row of K and one of V for every nonzero",
        shared="pieces of rows that lanes of one warp share",
        registers="a row of Q, its largest score, and the weighted sum of rows of V",
        to_shared="none is staged: lanes load 16 bytes each", to_registers="once per row",
        limit="one row of K and one row of V per nonzero out of L2",
        operands=("Q, O", "K, V"),
    ),
    "attention_scores": Panel(
        "two launches: SDDMM for the scores, then a warp for equally many nonzeros",
        (_rectangle((5, 8), (0, COLUMNS)),),
        _in("registers", (6, 7)),
        _each("l2", SCATTERED[6]),
        l2="one row of K for every nonzero, later one of V; the scores in between",
        shared="what the SDDMM keeps; then pieces of rows that lanes of one warp share",
        registers="a row's largest score, and the weighted sum of rows of V",
        to_shared="as the SDDMM", to_registers="once per row",
        limit="that of the SDDMM; then one row of V per nonzero out of L2",
        operands=("Q, O", "K, V"),
    ),
    "attention_tile": Panel(
        "one block: the tiles of 64 rows of S, one after the other",
        (_rectangle((4, 8), (0, 6)), _rectangle((4, 8), (6, 12)), _rectangle((4, 8), (12, 18))),
        _in("registers", (4, 8)), _in("shared", (6, 12)),
        l2="rows of K and V; a bit mask for each line of a tile that is not full",
        shared="two stages of 64 rows of K and of V",
        registers="64 rows of Q and of sums; scores and weights of a tile",
        to_shared="cp.async", to_registers="mma.sync",
        limit="the instructions of a tile, however few nonzeros it holds",
        operands=("Q, O", "K, V"),
    ),
    "row_softmax": Panel(
        "one block: the rows that begin in its share of 2048 nonzeros, of one head",
        (_rectangle((4, 8), (0, COLUMNS)),), (), (),
        l2="the values of the share's rows, read once",
        shared="the same in float32 or float64, and later the results",
        registers="up to 16 nonzeros of a row per lane; the row's largest value and sum",
        to_shared="neighbouring lanes load neighbouring values",
        to_registers="from one to 32 lanes to a row",
        limit="instructions and latency",
        operands=("", ""),
    ),
}  # fmt: skip
