"""A pattern as a part of a torch Module."""

from __future__ import annotations

from torch import Tensor, nn

from sddmm.sparse.formats import index_tensor
from sddmm.sparse.pattern import SparsePattern


class PatternModule(nn.Module):
    """A SparsePattern that moves and is saved with the Module it is an attribute of.

    Module buffers must be tensors, so this Module holds the index tensors as two buffers and the
    pattern over them as `pattern`: `self.graph = PatternModule(S)`, then `self.graph.pattern`.
    Whatever gives the outer Module other buffers (`to`, `cuda`, `cpu`, `load_state_dict`,
    torch.func.functional_call, a replica of DataParallel) gives it their pattern; casts (`half`,
    `to(dtype)`) leave indices as they are. The state holds indices, so another pattern's state
    loads if it has as many rows and nonzeros.

    persistent: whether the index tensors are in the state_dict.
    """

    major_indices: Tensor
    col_indices: Tensor

    def __init__(self, pattern: SparsePattern, persistent: bool = True) -> None:
        super().__init__()
        if not isinstance(pattern, SparsePattern):
            raise TypeError(f"pattern must be a SparsePattern, got {type(pattern)}")
        self._pattern = pattern
        self.register_buffer("major_indices", pattern.major_indices, persistent)
        self.register_buffer("col_indices", pattern.col_indices, persistent)

    @property
    def pattern(self) -> SparsePattern:
        """The pattern over the buffers as they are now."""
        pattern, major, cols = self._pattern, self.major_indices, self.col_indices
        if pattern.major_indices is not major or pattern.col_indices is not cols:
            # Module.type casts index tensors too, and floats hold few indices exactly.
            name = "crow_indices" if pattern.is_csr else "row_indices"
            major, cols = index_tensor(major, name), index_tensor(cols, "col_indices")
            pattern = pattern.with_indices(major, cols)
            self._pattern = pattern
        return pattern

    def extra_repr(self) -> str:
        return repr(self.pattern)
