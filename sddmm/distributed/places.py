"""Where some nonzeros of a block stand among all of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Places(NamedTuple):
    """The positions of some nonzeros, ascending: int32, or int64 where a block has 2^31 or more."""

    at: Tensor

    @classmethod
    def of(cls, is_chosen: Tensor) -> Places:
        """Those of the nonzeros that a mask of all chooses."""
        at = is_chosen.nonzero()[:, 0]
        return cls(at if is_chosen.numel() >= 2**31 else at.int())

    @property
    def is_served(self) -> bool:
        """Whether our kernels serve them; else torch does."""
        if not self.at.is_cuda or self.at.dtype != torch.int32:
            return False
        from sddmm.backends.cuda import loader

        return loader.runtime.unavailable() is None

    def take(self, values: Tensor) -> Tensor:
        """Their values, ([h,] count), from those of all, ([h,] nnz)."""
        if not self.is_served:
            return torch.index_select(values, -1, self.at)
        from sddmm.backends.cuda.kernels.spmm_weights.host import order_weights

        part = values.new_empty((*values.shape[:-1], self.at.numel()))
        if part.numel():
            every, index = values.contiguous().view(-1, values.shape[-1]), self.at.get_device()
            order_weights(every, None, values.dtype, self.at, part.view(len(every), -1), index)
        return part

    def put(self, part: Tensor, values: Tensor) -> None:
        """Store their values, ([h,] count), among those of all, ([h,] nnz), contiguous."""
        if not self.is_served:
            values.index_copy_(-1, self.at.long(), part)
            return
        from sddmm.backends.cuda.kernels.place_values.host import place_values

        place_values(part.contiguous(), self.at, values)
