"""Prepared plans of one pattern, how a plan is prepared, and runs that prepare none."""

from __future__ import annotations

import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from sddmm.backends.base import Executor, select_backend
from sddmm.memory import new_memory
from sddmm.problem import SddmmProblem
from sddmm.sparse.index_tensors import DerivedKey
from sddmm.sparse.pattern import SparsePattern

_log = logging.getLogger(__name__)

MAX_PLANS_PER_PATTERN = 64
_MAX_SIGNATURES_PER_PATTERN = 256
_RESULT = "a result of shape {shape}"

Signature = tuple[object, ...]
"""What a call says of its operands. Calls with equal signatures on a pattern run the same plan."""


class PlanKey(NamedTuple):
    """The key of a prepared plan of a pattern: the problem and the caller's requests.

    calls: the number of runs that the plan is prepared for.
    """

    problem: SddmmProblem
    backend: str | None
    kernel: str | None
    calls: int


class PreparedPlan(NamedTuple):
    """The part of a plan that the pattern caches. It holds no reference to the pattern, which would
    be a cycle.

    backend: the name of the backend that computes it; requested_backend and kernel: the names in
    the caller's request, or None; calls: the number of runs that it is prepared for. refusals: why
    the backends of higher rank do not serve. prepare_ms: the time that preparing took. versions:
    the pattern's when it was prepared.
    """

    problem: SddmmProblem
    values_shape: tuple[int, ...]
    backend: str
    requested_backend: str | None
    kernel: str | None
    calls: int
    refusals: Mapping[str, str]
    prepare_ms: float
    execute: Executor
    versions: tuple[int, ...]

    def compute(self, a: Tensor, b: Tensor, values: Tensor | None, alpha: float) -> Tensor:
        """Return a new tensor of values, which autograd does not follow."""
        problem = self.problem
        out = new_memory(_RESULT, self.values_shape, problem.out_dtype, problem.device)
        if out.numel():
            self.execute(a, b, values, alpha, out)
        return out


class FirstRun:
    """The run of a call that may have to prepare its plan first, with memory for its result.

    Calling it with an executor launches the run, which a backend may do before it has finished
    preparing. `result` launches it, unless that was done.
    """

    __slots__ = ("_out", "_problem", "is_launched", "keeps_pattern", "operands")

    def __init__(
        self,
        problem: SddmmProblem,
        a: Tensor,
        b: Tensor,
        values: Tensor | None,
        alpha: float,
        keeps_pattern: bool = True,
    ) -> None:
        self.keeps_pattern = keeps_pattern
        self.operands = a, b, values, alpha
        self._problem = problem
        self._out: Tensor | None = None
        self.is_launched = problem.nnz == 0 or problem.heads == 0

    @property
    def out(self) -> Tensor:
        """Memory for the result; allocated when it is needed, as the GPU may analyse meanwhile."""
        return self.allocate() if self._out is None else self._out

    def allocate(self) -> Tensor:
        problem = self._problem
        shape = problem.values_shape()
        self._out = out = new_memory(_RESULT, shape, problem.out_dtype, problem.device)
        return out

    def __call__(self, execute: Executor) -> None:
        if not self.is_launched:
            execute(*self.operands, self.out)
            self.is_launched = True

    def result(self, execute: Executor) -> Tensor:
        self(execute)
        return self.out


class PlanStore:
    """The prepared plans of one pattern, by key, and by the signatures of the calls they serve.

    A plan for a single run has no signature: the next call of its kind looks for a better plan.
    seen: the problems of calls that were planned for a single run.
    """

    def __init__(self) -> None:
        self.seen: set[SddmmProblem] = set()
        self.by_key: OrderedDict[PlanKey, PreparedPlan] = OrderedDict()
        self.by_signature: dict[Signature, PreparedPlan] = {}

    def add(self, key: PlanKey, plan: PreparedPlan) -> None:
        """Keep a plan; the one that was requested least recently goes if there are too many."""
        self.by_key[key] = plan
        while len(self.by_key) > MAX_PLANS_PER_PATTERN:
            oldest = self.by_key.popitem(last=False)[1]
            signatures = list(self.by_signature.items())  # another thread may add one meanwhile
            self.by_signature = {like: plan for like, plan in signatures if plan is not oldest}

    def see(self, problem: SddmmProblem) -> None:
        if len(self.seen) >= _MAX_SIGNATURES_PER_PATTERN:
            self.seen.clear()
        self.seen.add(problem)

    def add_signature(self, signature: Signature, plan: PreparedPlan) -> None:
        if plan.calls == 1:
            return
        if len(self.by_signature) >= _MAX_SIGNATURES_PER_PATTERN:
            self.by_signature.clear()
        self.by_signature[signature] = plan


PLANS = DerivedKey[PlanStore]("plans")


def is_capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured from torch's current stream."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def prepare(
    pattern: SparsePattern, key: PlanKey, first_run: FirstRun | None = None
) -> PreparedPlan:
    """The plan of a pattern; ValueError if a request of the caller is refused.

    first_run: the run that the plan is needed for, which may be launched while it is prepared.
    RuntimeError while a CUDA graph is captured: preparing waits for the GPU.
    """
    versions = pattern.versions
    begin = time.perf_counter()
    problem, name, kernel, calls = key
    backend, refusals = select_backend(problem, name)
    if kernel is not None and not backend.kernels:
        cuda = f"; cuda: {refusals['cuda']}" if "cuda" in refusals else ""
        raise ValueError(f"kernel={kernel!r} is of backend cuda, {backend.name} serves{cuda}")
    if calls > 1 or first_run is None:  # a call for a single run has looked (cache.py)
        refuse_capture(problem.device)
    if first_run is not None:
        first_run.allocate()  # out of memory for it is no failure to prepare
    execute = backend.prepare(pattern, problem, kernel, calls, first_run)
    prepare_ms = (time.perf_counter() - begin) * 1e3
    if _log.isEnabledFor(logging.DEBUG):  # the notes are formatted only then
        notes = "; ".join(" ".join(note.split()) for note in execute.notes)
        _log.debug("%d run(s) of %s by %s: %s", calls, problem, backend.name, notes)
    return PreparedPlan(
        problem, problem.values_shape(), backend.name, name, kernel, calls, refusals, prepare_ms,
        execute, versions,
    )  # fmt: skip


def run_once(
    pattern: SparsePattern,
    problem: SddmmProblem,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    alpha: float,
    calls: int = 1,
) -> Tensor:
    """The values of a call of which nothing is kept. Raises as `prepare`.

    calls: the number of runs to plan for, where the call is to give the bits of those.
    """
    run = FirstRun(problem, a, b, values, alpha, keeps_pattern=False)
    backend = select_backend(problem)[0]
    refuse_capture(problem.device)
    if calls == 1 and backend.run_once(pattern, problem, run):
        return run.out
    run.allocate()
    return run.result(backend.prepare(pattern, problem, None, calls, run))


def refuse_capture(device: torch.device) -> None:
    """Raise RuntimeError while a CUDA graph is captured: preparing waits for the GPU."""
    if is_capturing(device):
        raise RuntimeError(
            "sddmm has not seen these indices of S with such operands, and cannot prepare for them "
            "while a CUDA graph is captured; call it once before the capture, or capture the run "
            "of a plan"
        )


class _Seen(NamedTuple):
    owner: weakref.ref[Tensor]
    problems: set[SddmmProblem]


class SeenTensors:
    """Sparse tensors that came, while they live, and the problems for which they came. Nothing else
    is kept of a tensor's first call.
    """

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def problems(self, tensor: Tensor) -> set[SddmmProblem] | None:
        """The problems for which a tensor came; None if it never came."""
        seen = self._seen.get(id(tensor))
        return seen.problems if seen is not None and seen.owner() is tensor else None

    def add(self, tensor: Tensor) -> set[SddmmProblem]:
        """The set of a tensor's problems, from now on."""
        number = id(tensor)
        seen = _Seen(weakref.ref(tensor, lambda dead: self._forget(number, dead)), set())
        self._seen[number] = seen
        return seen.problems

    def clear(self) -> None:
        self._seen.clear()

    def _forget(self, number: int, dead: object) -> None:
        seen = self._seen.get(number)
        if seen is not None and seen.owner is dead:
            del self._seen[number]
