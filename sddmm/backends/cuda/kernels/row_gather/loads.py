"""How the lanes of a warp share the rows of its nonzeros: macros of gather.cuh."""

from __future__ import annotations

from gemm_core.arithmetic import ceil_div

LINE_BYTES = 128
"""The bytes of a line of L2, the least that it reads of memory at once."""

# Eight lanes load a line at once, which L2 serves faster than its halves: of rows that are longer
# than so many bytes and start at odd places, or longer than so many and start at multiples of 16.
LINE_LANES, _LONGER_THAN, _LONGER_ALIGNED = 8, 64, 192
# Up to so many bytes four lanes load aligned rows of an odd number of half lines instead, as they
# need no guard.
LONGEST_PASS = 512
# Eight lanes load rows of up to so many bytes in one pass, which leaves registers for few nonzeros;
# longer ones in passes of the size that pads them least. Half types need more registers.
_MOST_LINES, _HALF_PASSES, _PASSES = 640, (384, 256), (512, 384, 256)
# The pass of which registers hold eight batches.
_EIGHT_BATCHES = 256

# Four lanes load so many bytes at once, of rows that have no more than the least pass, half of it.
SEGMENT_BYTES, LEAST_PASS_BYTES = 64, 32


def row_loads(
    row_bytes: int, is_half: bool, step: int, long_rows: bool, several_waves: bool
) -> dict[str, int]:
    """The macros by which gather.cuh loads a row, which starts at a multiple of `step` bytes.
    long_rows: whether most groups of nonzeros are of one row of the pattern, and shares have some
    groups. several_waves: whether there are more shares than warps run at once."""
    if by_lines(row_bytes, step):
        return _loads_of_lines(row_bytes, is_half, step, long_rows)
    per_pass = _pass_of_four_lanes(row_bytes)
    segments = ceil_div(per_pass, SEGMENT_BYTES)
    load = min(step, per_pass // 4)
    is_aligned = load == min(16, per_pass // 4)
    four = is_aligned and segments <= (4 if is_half else 2)
    no_tail = is_aligned and row_bytes == per_pass
    return {
        "LOAD_BYTES": load,
        "LANES": 4,
        "PASS_BYTES": per_pass,
        "BATCHES": 4 if four else 2,
        "ONE_PASS": True,
        "NO_TAIL": no_tail,
        "SWAPPED": long_rows and several_waves and no_tail and per_pass == LINE_BYTES,
    }


def by_lines(row_bytes: int, step: int) -> bool:
    """Whether eight lanes load a row, rather than four."""
    if step < 16:
        return row_bytes > _LONGER_THAN
    in_halves = row_bytes <= LONGEST_PASS and row_bytes % LINE_BYTES == SEGMENT_BYTES
    return row_bytes > _LONGER_ALIGNED and not in_halves


def _loads_of_lines(row_bytes: int, is_half: bool, step: int, long_rows: bool) -> dict[str, int]:
    whole = ceil_div(row_bytes, LINE_BYTES) * LINE_BYTES
    one_pass, is_aligned = whole <= _MOST_LINES, step >= 16
    sizes: tuple[int, ...] = _HALF_PASSES if is_half else _PASSES
    # Eight batches, where a group of as many nonzeros is of one row, and guards leave registers.
    eight = long_rows and is_aligned
    if not one_pass:
        eight = eight and not is_half and row_bytes % _EIGHT_BATCHES == 0
        sizes = (_EIGHT_BATCHES,) if eight else sizes
    per_pass = whole if one_pass else min(sizes, key=lambda size: ceil_div(row_bytes, size) * size)
    batches = 8 if eight and per_pass == _EIGHT_BATCHES else 4
    return {
        "LOAD_BYTES": min(step, 16),
        "LANES": LINE_LANES,
        "PASS_BYTES": per_pass,
        "BATCHES": batches if per_pass <= LONGEST_PASS else 2,
        "ONE_PASS": one_pass,
        "NO_TAIL": is_aligned and row_bytes % per_pass == 0,
        "SWAPPED": False,
    }


def _pass_of_four_lanes(row_bytes: int) -> int:
    if row_bytes <= SEGMENT_BYTES:
        return LEAST_PASS_BYTES if row_bytes <= LEAST_PASS_BYTES else SEGMENT_BYTES
    if row_bytes % SEGMENT_BYTES == 0:
        return row_bytes
    return ceil_div(row_bytes, LINE_BYTES) * LINE_BYTES
