"""A pattern as a part of a torch Module."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sddmm.sparse.pattern import SparsePattern


class PatternModule(nn.Module):
    """A SparsePattern that moves and is saved with the Module it is an attribute of.

    Module buffers must be tensors, so this Module holds the index tensors as two buffers and the
    pattern over them as `pattern`: `self.graph = PatternModule(S)`, then `self.graph.pattern`.
    `to`, `cuda`, `cpu` and `load_state_dict` of the outer Module give it the pattern of the new
    buffers; casts (`half`, `to(dtype)`) leave indices as they are. The state holds indices, so
    another pattern's state loads if it has as many rows and nonzeros.

    persistent: whether the index tensors are in the state_dict.
    """

    major_indices: Tensor
    col_indices: Tensor

    def __init__(self, pattern: SparsePattern, persistent: bool = True) -> None:
        super().__init__()
        if not isinstance(pattern, SparsePattern):
            raise TypeError(f"pattern must be a SparsePattern, got {type(pattern)}")
        self.pattern = pattern
        self.register_buffer("major_indices", pattern.major_indices, persistent)
        self.register_buffer("col_indices", pattern.col_indices, persistent)

    def _apply(self, fn: Any, recurse: bool = True) -> PatternModule:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._follow_buffers()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._follow_buffers()

    def _follow_buffers(self) -> None:
        pattern, major, cols = self.pattern, self.major_indices, self.col_indices
        if pattern.major_indices is major and pattern.col_indices is cols:
            return
        if pattern.is_csr:
            self.pattern = SparsePattern(pattern.shape, cols, crow_indices=major)
        else:
            self.pattern = SparsePattern(pattern.shape, cols, row_indices=major)

    def extra_repr(self) -> str:
        return repr(self.pattern)
