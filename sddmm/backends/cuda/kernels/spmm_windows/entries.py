"""The nonzeros of W by windows of columns, and how blocks share them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from sddmm.backends.cuda.layouts import Nonzeros, int32

# The bits of an entry (kernel.cu), and the entries that a group loads at once.
_LAST, _EMPTY, _BATCH = 1 << 15, 1 << 14, 8


class Entries(NamedTuple):
    """The nonzeros window by window, row by row; a row without any in a window has an empty entry.

    entries: (count,) int16, see kernel.cu, padded to whole batches. positions: (count,) int32, of
    each nonzero in the pattern; 0 for others. starts: (windows * m + 1,) int64, the first entry of
    each row of each window.
    """

    entries: Tensor
    positions: Tensor
    starts: Tensor


class Segments(NamedTuple):
    """What blocks compute, one segment after the other: rows of a window, for a slice of a head.

    All int32. bounds: (segments, groups + 1, 2), the first row and the first entry of each group.
    windows_and_parts: (segments, 2). first_of_blocks: (blocks + 1,). A part is a slice of a head.
    """

    bounds: Tensor
    windows_and_parts: Tensor
    first_of_blocks: Tensor

    @property
    def blocks(self) -> int:
        return self.first_of_blocks.numel() - 1


def entries_of(nonzeros: Nonzeros, shape: tuple[int, int], width: int) -> Entries:
    """nonzeros: in ascending order of their rows. shape: that of W."""
    m, windows = shape[0], max(1, ceil_div(shape[1], width))
    window = nonzeros.cols // width
    narrow = window.to(torch.int16 if windows < 2**15 else torch.int32)
    ascending, order = narrow.sort(stable=True)
    key = ascending.to(torch.int64) * m + nonzeros.rows[order]
    counts = torch.bincount(key, minlength=windows * m)
    lengths = counts.clamp(min=1)
    starts = torch.zeros(windows * m + 1, dtype=torch.int64, device=key.device)
    torch.cumsum(lengths, 0, out=starts[1:])
    empties_before = starts[:-1] - (counts.cumsum(0) - counts)
    own = torch.arange(key.numel(), device=key.device) + empties_before[key]

    count = windows * m + int((counts - 1).clamp_(min=0).sum())
    padded = ceil_div(count, _BATCH) * _BATCH
    slots = torch.full((padded,), _EMPTY, dtype=torch.int32, device=key.device)
    slots[own] = int32(nonzeros.cols - window * width)[order]
    slots[starts[1:] - 1] |= _LAST
    positions = torch.zeros(padded, dtype=torch.int32, device=key.device)
    positions[own] = int32(order if nonzeros.perm is None else nonzeros.perm[order])
    return Entries(slots.to(torch.int16), positions, starts)


def segments_of(
    entries: Entries, m: int, parts: int, blocks: int, groups: int, window_entries: int
) -> Segments:
    """Equal shares of the work of all parts, cut between rows.

    window_entries: what a block adds in the time in which it loads a window.
    """
    starts = entries.starts
    firsts = starts[:: max(1, m)].cpu().numpy()  # of each window, and the end
    windows = firsts.size - 1
    # Of a part, loading included; its windows begin at these units of its work.
    begins = firsts + window_entries * np.arange(windows + 1)
    share = max(1, ceil_div(int(parts * begins[-1]), blocks))
    cuts = np.arange(1, blocks) * share
    # Every cut, and every begin of a window of a part, begins a segment.
    all_begins = (np.arange(parts)[:, None] * begins[-1] + begins[:-1]).ravel()
    cuts = cuts[cuts < parts * begins[-1]]
    units = np.unique(np.concatenate([all_begins, cuts]))
    part, unit = np.divmod(units, begins[-1])
    window = np.searchsorted(begins, unit, side="right") - 1
    first = np.maximum(unit - window_entries - begins[window] + firsts[window], firsts[window])
    ends = np.append(first[1:], 0)
    is_last = np.append(window[1:] != window[:-1], True) | np.append(part[1:] != part[:-1], True)
    ends = np.where(is_last, firsts[window + 1], ends)
    kept = first < ends
    part, window, first, ends, units = (x[kept] for x in (part, window, first, ends, units))
    of_block = np.minimum(units // share, blocks - 1)
    first_of_blocks = np.searchsorted(of_block, np.arange(blocks + 1))

    group = np.arange(groups + 1)
    targets = first[:, None] + (ends - first)[:, None] * group // groups
    device = starts.device
    rows = torch.searchsorted(starts, torch.from_numpy(targets).to(device))
    window_rows = torch.from_numpy(window * m).to(device)
    bounds = torch.stack([rows - window_rows[:, None], starts[rows]], dim=2)
    both = np.stack([window, part], axis=1).astype(np.int32)
    return Segments(
        int32(bounds), torch.from_numpy(both).to(device),
        torch.from_numpy(first_of_blocks.astype(np.int32)).to(device),
    )  # fmt: skip
