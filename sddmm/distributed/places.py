"""Where some nonzeros of a block stand among all of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.place_values.host import place_values
from sddmm.backends.cuda.kernels.spmm_weights.host import order_weights


class Places(NamedTuple):
    """The positions of some nonzeros, ascending: int32, or int64 where a block has 2^31 or more."""

    at: Tensor

    @classmethod
    def of(cls, is_chosen: Tensor) -> Places:
        """Those of the nonzeros that a mask of all chooses."""
        at = is_chosen.nonzero()[:, 0]
        return cls(at if is_chosen.numel() >= 2**31 else at.int())

    def take(self, values: Tensor) -> Tensor:
        """Their values, ([h,] count), from those of all, ([h,] nnz)."""
        if not self._is_ordered_by_kernel():
            return torch.index_select(values, -1, self.at)
        part = values.new_empty((*values.shape[:-1], self.at.numel()))
        if part.numel():
            every, index = values.contiguous().view(-1, values.shape[-1]), self.at.get_device()
            order_weights(every, None, values.dtype, self.at, part.view(len(every), -1), index)
        return part

    def put(self, part: Tensor, values: Tensor) -> None:
        """Store their values, ([h,] count), among those of all, ([h,] nnz), contiguous."""
        place_values(part.contiguous(), self.at, values)

    def _is_ordered_by_kernel(self) -> bool:
        """Whether `order_weights`, which knows no other way, can take values."""
        is_kept = self.at.is_cuda and self.at.dtype == torch.int32
        return is_kept and loader.runtime.unavailable() is None
