"""The nonzeros of W by windows of columns, and how blocks share them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from sddmm.backends.cuda.layouts import Nonzeros, int32

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The bits of an entry (kernel.cu), and the entries that a group loads at once.
_LAST, _EMPTY, _BATCH = 1 << 15, 1 << 14, 8


class Entries(NamedTuple):
    """The nonzeros window by window, row by row; a row without any in a window has an empty entry.

    entries: (count,) int16, see kernel.cu, padded to whole batches. positions: (count,) int32, of
    each nonzero in the pattern; 0 for others. starts: (windows * m + 1,) int64, the first entry of
    each row of each window. first_of_windows: (windows + 1,) int64, on the CPU.
    """

    entries: Tensor
    positions: Tensor
    starts: Tensor
    first_of_windows: NDArray[np.int64]


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
    """nonzeros: in ascending order of their rows. shape: that of W, which has rows."""
    m, windows = shape[0], max(1, ceil_div(shape[1], width))
    window = nonzeros.cols // width
    narrow = window.to(torch.int16 if windows < 2**15 else torch.int32)
    ascending, order = narrow.sort(stable=True)
    key = ascending.to(torch.int64) * m + nonzeros.rows[order]
    # The first nonzero of each row of each window, and the number of nonzeros; then of entries.
    firsts = torch.searchsorted(key, torch.arange(windows * m + 1, device=key.device))
    starts = torch.zeros_like(firsts)
    torch.cumsum(firsts.diff().clamp_(min=1), 0, out=starts[1:])
    first_of_windows = starts[::m].cpu().numpy()  # waits for the GPU

    padded = ceil_div(int(first_of_windows[-1]), _BATCH) * _BATCH
    own = (starts - firsts)[key] + torch.arange(key.numel(), device=key.device)
    slots = torch.full((padded,), _EMPTY, dtype=torch.int32, device=key.device)
    slots[own] = int32(nonzeros.cols - window * width)[order]
    slots[starts[1:] - 1] |= _LAST
    positions = torch.zeros(padded, dtype=torch.int32, device=key.device)
    positions[own] = int32(order if nonzeros.perm is None else nonzeros.perm[order])
    return Entries(slots.to(torch.int16), positions, starts, first_of_windows)


def segments_of(
    entries: Entries, parts: int, blocks: int, groups: int, window_entries: int
) -> Segments:
    """Equal shares of the work of all parts, cut between rows.

    window_entries: what a block adds in the time in which it loads a window.
    """
    starts, firsts = entries.starts, entries.first_of_windows
    windows = firsts.size - 1
    m = (starts.numel() - 1) // windows
    # Where the windows of a part begin in its work, which includes loading them.
    begins = firsts + window_entries * np.arange(windows + 1)
    work = parts * int(begins[-1])
    share = ceil_div(work, blocks)
    # Every window of a part begins a segment, and every share does.
    units = (np.arange(parts)[:, None] * begins[-1] + begins[:-1]).ravel()
    units = np.unique(np.concatenate([units, np.arange(share, work, share)]))
    part, unit = np.divmod(units, begins[-1])
    window = np.searchsorted(begins, unit, side="right") - 1
    first = firsts[window] + np.maximum(unit - begins[window] - window_entries, 0)
    is_last = np.append((window[1:] != window[:-1]) | (part[1:] != part[:-1]), True)
    end = np.where(is_last, firsts[window + 1], np.append(first[1:], 0))
    kept = first < end  # others would begin while the window is loaded
    part, window, first, end, units = (x[kept] for x in (part, window, first, end, units))
    first_of_blocks = np.searchsorted(units // share, np.arange(blocks + 1))

    group = np.arange(groups + 1)
    targets = first[:, None] + (end - first)[:, None] * group // groups
    device = starts.device
    rows = torch.searchsorted(starts, torch.from_numpy(targets).to(device))
    window_rows = torch.from_numpy(window * m).to(device)
    bounds = torch.stack([rows - window_rows[:, None], starts[rows]], dim=2)
    both = np.stack([window, part], axis=1).astype(np.int32)
    return Segments(
        int32(bounds), torch.from_numpy(both).to(device),
        torch.from_numpy(first_of_blocks.astype(np.int32)).to(device),
    )  # fmt: skip
