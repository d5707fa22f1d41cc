"""The method `ours` without a CUDA graph: what a step takes whose every call the host makes."""

from __future__ import annotations

import torch

from experiments.bench.methods import Run
from experiments.training.case import Case, Step
from experiments.training.methods import ours


def refuses(case: Case) -> str | None:
    return None if case.device.startswith("cuda") else "on a CPU it is the method ours"


def prepare(case: Case) -> Run:
    run = ours.prepare(case)

    def eager_run() -> Step:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("this method is to be called, not captured")
        step: Step = run()
        return step

    return eager_run
