"""What test_processes.py runs apart, as it may hang: python -m tests.sddmm.process_jobs FOLDER."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import sddmm
from sddmm import SparsePattern
from sddmm.testing import random_pattern

# Several chunks, so that our threads are at work.
M, K, N, NNZ = 300, 100, 200, 30_000


def used(layout: str = "coo") -> tuple[SparsePattern, Tensor, Tensor, Tensor]:
    """A pattern that has been sampled on several threads, its operands, and the values."""
    torch.set_num_threads(2)
    pattern = random_pattern(M, N, NNZ, layout=layout, shuffled=layout == "coo")
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(M, K, generator=generator), torch.randn(K, N, generator=generator)
    return pattern, a, b, sddmm.sddmm(pattern, a, b)


def gradients(S: Any, a: Tensor, b: Tensor) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in (a, b)]
    return list(torch.autograd.grad(sddmm.sddmm(S, *leaves).sum(), leaves))


def require_equal(got: Tensor, expected: Tensor, what: str) -> None:
    if not torch.equal(got, expected):
        raise SystemExit(f"{what}: other values")


def fork() -> None:
    """A child of os.fork samples after its parent did: by old plans, new ones, with gradients."""
    pattern, a, b, expected = used()
    plan = sddmm.plan(pattern, k=K, dtype=a.dtype)
    plan.run(a, b)
    expected_gradients = gradients(pattern, a, b)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            require_equal(plan.run(a, b), expected, "a plan of the parent")
            require_equal(sddmm.sddmm(pattern, a, b), expected, "a pattern of the parent")
            # torch's operations on several threads hang after a fork, `x + x` of a million too;
            # its DataLoader sets one thread, as others must.
            torch.set_num_threads(1)
            require_equal(sddmm.sddmm(pattern.clone(), a, b), expected, "a pattern of the child")
            for got, right in zip(gradients(pattern, a, b), expected_gradients, strict=True):
                torch.testing.assert_close(got, right)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    require_equal(sddmm.sddmm(pattern, a, b), expected, "the parent after the fork")
    if status:
        raise SystemExit(f"the child ended with {status}")


def child_of_spawn(sent: list[tuple[Any, sddmm.Plan, Tensor, Tensor]], path: str) -> None:
    values = [
        [sddmm.sddmm(S, a, b), plan.run(a, b), sddmm.sddmm(plan.pattern, a, b)]
        for S, plan, a, b in sent
    ]
    torch.save(values, path)


def spawn() -> None:
    """A spawned child gets used patterns and used plans; parent and child are right after."""
    sent, right = [], []
    for layout in ("coo", "csr"):
        pattern, a, b, expected = used(layout)
        plan = sddmm.plan(pattern, k=K, dtype=a.dtype)
        require_equal(plan.run(a, b), expected, f"a plan ({layout})")
        sent.append((pattern, plan, a, b))
        right.append(expected)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "values.pt")
        child = multiprocessing.get_context("spawn").Process(
            target=child_of_spawn, args=(sent, path)
        )
        child.start()
        # Sending a tensor moves its memory to where both processes see it.
        litter = [torch.full((NNZ,), 2**40) for _ in range(40)]
        for (pattern, plan, a, b), expected in zip(sent, right, strict=True):
            require_equal(plan.run(a, b), expected, "the plan, sent")
            require_equal(sddmm.sddmm(pattern, a, b), expected, "the pattern, sent")
        child.join()
        del litter
        if child.exitcode:
            raise SystemExit(f"the child ended with {child.exitcode}")
        for values, expected in zip(torch.load(path), right, strict=True):
            for got in values:
                require_equal(got, expected, "the child")


def moved_memory() -> None:
    """The index tensors of a used pattern are moved to shared memory, as when they are sent."""
    for layout in ("coo", "csr"):
        pattern, a, b, expected = used(layout)
        plan = sddmm.plan(pattern, k=K, dtype=a.dtype)
        plan.run(a, b)
        for indices in (pattern.major_indices, pattern.col_indices):
            indices.share_memory_()
        litter = [torch.full((NNZ,), 2**40) for _ in range(20)]
        require_equal(plan.run(a, b), expected, f"a plan ({layout})")
        require_equal(sddmm.sddmm(pattern, a, b), expected, f"a pattern ({layout})")
        del litter


def saved() -> None:
    """pickle and torch.save of a used pattern and plan, read by this process."""
    pattern, a, b, expected = used()
    plan = sddmm.plan(pattern, k=K, dtype=a.dtype)
    plan.run(a, b)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "both.pt"
        torch.save((pattern, plan), path)
        loaded = torch.load(path, weights_only=False)
    for S, prepared in (pickle.loads(pickle.dumps((pattern, plan))), loaded):
        require_equal(sddmm.sddmm(S, a, b), expected, "a pattern read again")
        require_equal(prepared.run(a, b), expected, "a plan read again")


class Graphs(Dataset[tuple[SparsePattern, Tensor]]):
    """Patterns that were used before, and are used again where they are loaded."""

    def __init__(self) -> None:
        self.pattern, self.a, self.b, self.expected = used()

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[SparsePattern, Tensor]:
        return self.pattern, sddmm.sddmm(self.pattern, self.a, self.b)


def first(batch: list[tuple[SparsePattern, Tensor]]) -> tuple[SparsePattern, Tensor]:
    return batch[0]


def loaded_by(start: str) -> None:
    """A worker of a DataLoader samples a used pattern and sends it back."""
    graphs = Graphs()
    loader = DataLoader(graphs, num_workers=1, multiprocessing_context=start, collate_fn=first)
    count = 0
    for pattern, values in loader:
        require_equal(values, graphs.expected, "what the worker sampled")
        again = sddmm.sddmm(pattern, graphs.a, graphs.b)
        require_equal(again, graphs.expected, "the pattern that the worker sent")
        count += 1
    if count != len(graphs):
        raise SystemExit(f"{count} of {len(graphs)} batches")


JOBS = {
    "fork": fork,
    "spawn": spawn,
    "moved_memory": moved_memory,
    "saved": saved,
    "data_loader_fork": lambda: loaded_by("fork"),
    "data_loader_spawn": lambda: loaded_by("spawn"),
}


def main(folder: Path) -> None:
    """Run every job in a fork of this process, which has imported everything and started no thread;
    what a job prints, and at last its status, are in its file of the folder."""
    for name, job in JOBS.items():
        child = os.fork()
        if child == 0:
            _do(job, folder / name)
        os.waitpid(child, 0)


def _do(job: Callable[[], None], told: Path) -> NoReturn:
    file, status = os.open(told, os.O_CREAT | os.O_WRONLY), "failed"
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        job()
        status = "right"
    except BaseException:
        traceback.print_exc()
    finally:
        print(status, flush=True)
        os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
