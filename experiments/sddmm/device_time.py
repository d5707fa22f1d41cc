"""Times a run on the GPU, for methods that try several ways once and keep the fastest."""

from __future__ import annotations

import torch

from experiments.bench.methods import Run


def device_ms(run: Run) -> float:
    """The least of three times, after an uncounted call."""
    run()
    times = []
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return min(times)
