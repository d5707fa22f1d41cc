"""Random patterns."""

from __future__ import annotations

import numpy as np
import torch

from sddmm.sparse.pattern import SparsePattern


def random_pattern(
    m: int,
    n: int,
    nnz: int,
    *,
    layout: str = "csr",
    shuffled: bool = False,
    index_dtype: torch.dtype = torch.int64,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> SparsePattern:
    """nnz distinct positions of an m x n matrix, uniformly at random; sorted unless `shuffled`.

    layout: "csr" or "coo"; only COO can be shuffled.
    """
    if layout not in ("csr", "coo") or (shuffled and layout == "csr"):
        raise ValueError(f"layout must be 'csr', or 'coo' (shuffled or not), got {layout!r}")
    if not 0 <= nnz <= m * n:
        raise ValueError(f"nnz must lie in 0..m*n = {m * n}, got {nnz}")
    rng = np.random.default_rng(seed)
    flat = rng.choice(m * n, nnz, replace=False) if nnz else np.empty(0, np.int64)
    flat = flat if shuffled else np.sort(flat)
    rows, cols = (
        torch.from_numpy(x).to(index_dtype).to(device) for x in np.divmod(flat, max(1, n))
    )
    pattern = SparsePattern.from_coo(rows, cols, (m, n))
    return pattern.to_csr() if layout == "csr" else pattern
