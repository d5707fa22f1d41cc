"""Outputs that show which of their values nobody wrote."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor


@contextlib.contextmanager
def poisoned_outputs() -> Iterator[None]:
    """Within the block torch.empty and torch.empty_like give NaN instead of old memory.

    A kernel that leaves an output unwritten is then wrong for certain. Not thread-safe.
    """

    def poisoned(empty: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def make(*args: Any, **kwargs: Any) -> Tensor:
            tensor = empty(*args, **kwargs)
            if tensor.is_floating_point():
                with torch.no_grad():  # a leaf that requires gradients is not changed otherwise
                    tensor.fill_(torch.nan)
            return tensor

        return make

    with (
        mock.patch.object(torch, "empty", poisoned(torch.empty)),
        mock.patch.object(torch, "empty_like", poisoned(torch.empty_like)),
    ):
        yield
