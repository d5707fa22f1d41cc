"""The record of one method on one case of attention."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.sddmm import record


@dataclass(kw_only=True)
class Record(record.Record):
    """A record of attention: k is d, the columns of q, k and v.

    error: the largest error of the result and the gradients, relative to the sum of magnitudes of
    each entry. backward: whether the gradients were computed. peak_bytes: the memory on the GPU
    that a training step allocates at most, its results included; None for yardsticks, forwards and
    on a CPU. result_bytes: what its results and a float32 of each row and head take. compile_ms:
    the first call of what torch.compile made, from its caches on disk where they hold it.
    """

    backward: bool = False
    peak_bytes: int | None = None
    result_bytes: int = 0
    compile_ms: float | None = None

    @property
    def case(self) -> tuple[object, ...]:
        return (*super().case, self.backward)
