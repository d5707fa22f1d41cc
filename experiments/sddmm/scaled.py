"""Methods whose samples are multiplied by the matrix's values when they are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from experiments.bench.methods import Method, Run


class ThenScaled:
    """A method that knows no values, followed by a multiplication of its result in place.

    The matrix's values are converted beforehand to the dtype of the result, where they differ.
    """

    # Its result is rounded once before it is multiplied.
    extra_roundings = 1

    def __init__(self, method: Method) -> None:
        self._method = method
        self.__file__ = getattr(method, "__file__", None)
        public_call = getattr(method, "public_call", None)
        if public_call is not None:
            self.public_call = lambda case: _then_scaled(public_call(case), case)

    def refuses(self, case: Any) -> str | None:
        return self._method.refuses(case)

    def prepare(self, case: Any) -> Run:
        return _then_scaled(self._method.prepare(case), case)


def _then_scaled(run: Run, case: Any) -> Run:
    scales = {case.values.dtype: case.values}
    if case.out_dtype not in scales:
        scales[case.out_dtype] = case.values.to(case.out_dtype)

    def scaled() -> Tensor:
        samples = torch.as_tensor(run())
        return samples.mul_(scales[samples.dtype])

    return scaled


def then_scaled(methods: Mapping[str, Method]) -> dict[str, Method]:
    """The methods as they compute scaled samples, each by itself or by a multiplication."""
    return {
        name: method if getattr(method, "scales", False) else ThenScaled(method)
        for name, method in methods.items()
    }
