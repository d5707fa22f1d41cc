"""Prepared plans of one pattern, how a plan is prepared, and runs that prepare none."""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from sddmm.backends.base import MANY_CALLS, Executor
from sddmm.backends.selection import CHOICES, select_backend
from sddmm.memory import new_memory
from sddmm.problem import SddmmProblem
from sddmm.sparse.index_tensors import DerivedKey
from sddmm.sparse.pattern import SparsePattern

if TYPE_CHECKING:
    from sddmm.backends.base import Backend, PreparedAttention, PreparedProduct
    from sddmm.problem import AttentionProblem, SpmmProblem

_log = logging.getLogger(__name__)

# The bound on what is prepared of one pattern for one operator.
MAX_PLANS_PER_PATTERN = 64
_MAX_SIGNATURES_PER_PATTERN = 256
_RESULT = "a result of shape {shape}"

# torch's public function asks this one.
_is_stream_capturing: Callable[[], bool] = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)

K = TypeVar("K")
V = TypeVar("V", bound="WithNotes")


class WithNotes(Protocol):
    """What is prepared for any operator."""

    @property
    def notes(self) -> Sequence[str]:
        """Lines about what was prepared."""


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
    preparing. `result` launches it, unless that was done. wrap: converts the result for the caller,
    which a backend may do while its device still computes (`wrap_result`).
    """

    __slots__ = (
        "_out", "_problem", "_wrap", "_wrapped", "is_launched", "keeps_pattern", "operands"
    )  # fmt: skip

    def __init__(
        self,
        problem: SddmmProblem,
        a: Tensor,
        b: Tensor,
        values: Tensor | None,
        alpha: float,
        keeps_pattern: bool = True,
        wrap: Callable[[Tensor], Any] | None = None,
    ) -> None:
        self.keeps_pattern = keeps_pattern
        self.operands = a, b, values, alpha
        self._problem, self._wrap = problem, wrap
        self._out: Tensor | None = None
        self._wrapped: Any = None
        self.is_launched = problem.nnz == 0 or problem.heads == 0

    @property
    def out(self) -> Tensor:
        """Memory for the result; allocated when it is needed, as the GPU may analyse meanwhile."""
        out = self._out
        if out is None:
            problem = self._problem
            shape = (problem.nnz,) if problem.heads is None else (problem.heads, problem.nnz)
            self._out = out = new_memory(_RESULT, shape, problem.out_dtype, problem.device)
        return out

    def __call__(self, execute: Executor) -> None:
        if not self.is_launched:
            execute(*self.operands, self.out)
            self.is_launched = True

    def result(self, execute: Executor) -> Tensor:
        self(execute)
        return self.out

    def wrap_result(self) -> Any:
        """The result as the caller gets it. Its values may follow, as the device computes them."""
        if self._wrap is None:
            return self.out
        if self._wrapped is None:
            self._wrapped = self._wrap(self.out)
        return self._wrapped


class FirstCalls:
    """First calls with one problem on patterns of one form, and who computes them.

    is_kept: whether the pattern stays, for later calls. run: launches a run without a plan and
    checks its pattern; False if there is no such way.
    """

    __slots__ = ("_is_csr", "_is_kept", "backend", "problem", "run")

    def __init__(self, problem: SddmmProblem, is_csr: bool, is_kept: bool) -> None:
        self.problem, self.backend = problem, select_backend(problem, None)[0]
        self._is_csr, self._is_kept = is_csr, is_kept
        # Found at the first run, as this may load kernels.
        self.run: Callable[[SparsePattern, FirstRun], bool] = self._find_runs

    def _find_runs(self, pattern: SparsePattern, run: FirstRun) -> bool:
        self.run = (
            self.backend.single_runs(self.problem, self._is_csr, self._is_kept) or _no_single_runs
        )
        return self.run(pattern, run)


def _no_single_runs(pattern: SparsePattern, run: FirstRun) -> bool:
    return False


# The first calls with a problem; `CHOICES` says for how long they are right.
first_calls = functools.lru_cache(maxsize=1024)(FirstCalls)
CHOICES.append(first_calls.cache_clear)


class PlanStore:
    """What is prepared of one pattern.

    by_key, by_signature: the plans of sddmm by key, and by the signatures of the calls they serve.
    A plan for a single run has no signature: the next call of its kind looks for a better plan.
    seen: the problems of calls that were planned for a single run. products, attentions: what is
    prepared for the other operators, by problem and purpose (`Cache.find_or_prepare`).
    """

    def __init__(self) -> None:
        self.seen: set[SddmmProblem] = set()
        self.by_key: OrderedDict[PlanKey, PreparedPlan] = OrderedDict()
        self.by_signature: dict[Signature, PreparedPlan] = {}
        self.products: dict[tuple[SpmmProblem, str], PreparedProduct] = {}
        self.attentions: dict[tuple[AttentionProblem, str], PreparedAttention] = {}

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


def plans_of(pattern: SparsePattern) -> PlanStore:
    """What is prepared of a pattern, until its indices change in place."""
    return pattern.derive(PLANS, PlanStore)


def keep(kept: dict[K, V], key: K, prepared: V) -> None:
    """Keep what is prepared; what came first goes if there is too much."""
    while len(kept) >= MAX_PLANS_PER_PATTERN:
        kept.pop(next(iter(kept)), None)  # another thread may have been quicker
    kept[key] = prepared


def log_notes(prepared: WithNotes, what: str, *arguments: object) -> None:
    """Log what was prepared. what: its name, a format of the arguments."""
    if _log.isEnabledFor(logging.DEBUG):  # the notes are formatted only then
        notes = "; ".join(" ".join(note.split()) for note in prepared.notes)
        _log.debug(what + ": %s", *arguments, notes)


def is_capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured from torch's current stream."""
    return device.type == "cuda" and _is_stream_capturing()


def calls_to_expect(
    store: PlanStore,
    problem: SddmmProblem,
    server: Backend,
    backend: str | None = None,
    kernel: str | None = None,
) -> int:
    """For how many runs the next call with a pattern plans: one at the first, then many.

    store: what is prepared of the pattern. server: the backend that serves the problem. backend,
    kernel: the names in the caller's request. A call that a CUDA graph captures cannot prepare, and
    runs what was prepared before it. Deterministic algorithms are prepared for many runs at the
    first call, so that all calls give the same bits.
    """
    if kernel is not None or torch.are_deterministic_algorithms_enabled():
        return MANY_CALLS
    by_key, seen = store.by_key, store.seen
    if by_key and PlanKey(problem, backend, None, MANY_CALLS) in by_key:
        return MANY_CALLS
    if not server.plans_by_calls:
        return MANY_CALLS
    if not seen or problem not in seen:  # a problem takes long to hash
        refuse_capture(problem.device)
        store.see(problem)
        return 1
    return 1 if is_capturing(problem.device) else MANY_CALLS


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
    if calls > 1 or first_run is None:  # a call for a single run has looked
        refuse_capture(problem.device)
    if first_run is not None:
        first_run.out  # noqa: B018 - out of memory for it is no failure to prepare
    execute = backend.prepare(pattern, problem, kernel, calls, first_run)
    prepare_ms = (time.perf_counter() - begin) * 1e3
    log_notes(execute, "%d run(s) of %s by %s", calls, problem, backend.name)
    return PreparedPlan(
        problem, problem.values_shape(), backend.name, name, kernel, calls, refusals, prepare_ms,
        execute, versions,
    )  # fmt: skip


def run_once(
    pattern: SparsePattern,
    first: FirstCalls,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    alpha: float,
    calls: int = 1,
    wrap: Callable[[Tensor], Any] | None = None,
) -> Any:
    """The values of a call of which nothing is kept. Raises as `prepare`.

    calls: the number of runs to plan for, where the call is to give the bits of those. wrap: what
    converts the values, if it is not to be the caller.
    """
    problem = first.problem
    run = FirstRun(problem, a, b, values, alpha, False, wrap)
    if is_capturing(problem.device):
        refuse_capture(problem.device)
    if calls == 1 and first.run(pattern, run):
        return run.wrap_result()
    run.out  # noqa: B018 - as in `prepare`
    run(first.backend.prepare(pattern, problem, None, calls, run))
    return run.wrap_result()


def refuse_capture(device: torch.device) -> None:
    """Raise RuntimeError while a CUDA graph is captured: preparing waits for the GPU."""
    if is_capturing(device):
        raise RuntimeError(
            "sddmm has not seen these indices of S with operands of such sizes and dtypes (and the "
            "same `scale`, where there is one), and cannot prepare for them while a CUDA graph is "
            "captured; call it once before the capture, or capture the run of a plan"
        )


class SeenTensor(weakref.ref[Tensor]):
    """A sparse tensor that came. first_problem: that of its first call, None if it had none."""

    __slots__ = ("_problems", "first_problem", "number")

    number: int
    first_problem: SddmmProblem | None
    _problems: set[SddmmProblem] | None

    @property
    def problems(self) -> set[SddmmProblem]:
        """The problems for which the tensor came. No set is made in the first call: a problem takes
        long to hash."""
        if self._problems is None:
            self._problems = set() if self.first_problem is None else {self.first_problem}
        return self._problems


class SeenTensors:
    """Sparse tensors that came, while they live. Nothing else is kept of a tensor's first call."""

    def __init__(self) -> None:
        self._seen: dict[int, SeenTensor] = {}

    def find(self, tensor: Tensor) -> SeenTensor | None:
        """What is known of a tensor; None if it never came."""
        seen = self._seen.get(id(tensor))
        return seen if seen is not None and seen() is tensor else None

    def add(self, tensor: Tensor) -> SeenTensor:
        """Note that a tensor came."""
        seen = SeenTensor(tensor, self._forget)
        seen.number = number = id(tensor)
        seen.first_problem = seen._problems = None
        self._seen[number] = seen
        return seen

    def clear(self) -> None:
        self._seen.clear()

    def _forget(self, dead: SeenTensor) -> None:
        if self._seen.get(dead.number) is dead:
            del self._seen[dead.number]
