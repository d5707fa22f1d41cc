"""Running one case: right, refused as it should be, or a failure in words."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import gemm_core
import sddmm
from sddmm.testing import poisoned_outputs
from tests.fuzz import build
from tests.fuzz.case import NUMPY, SCIPY, Case
from tests.fuzz.refusals import BAD_INDEX, applicable, expected_refusal, may_refuse
from tests.fuzz.truth import difference
from tests.fuzz.use import Use, Wrong, ordinary

_OURS = tuple(str(Path(package.__file__ or "").parent) for package in (sddmm, gemm_core))
_NAMES = re.compile(
    r"\b(S|a|b|k|out|out_dtype|dtype|heads|precision|backend|kernel|alpha|beta|shape|values|"
    r"(crow|row|col)_indices)\b"
)


class Outcome(NamedTuple):
    """kind: "ok" or "refused"; or a failure: "wrong", "unclear", "served" (what should have been
    refused), "not served" (what should have been served) or "crash". text: why."""

    kind: str
    text: str = ""

    @property
    def failed(self) -> bool:
        return self.kind not in ("ok", "refused")


def run(case: Case) -> Outcome:
    """The outcome of a case. Only a crash of the process is not caught here."""
    rows, cols = build.positions(case)
    if case.hostile is not None and not applicable(case, rows.numel()):
        case = ordinary(case)
    threads = torch.get_num_threads()
    torch.set_num_threads(case.threads)
    try:
        with poisoned_outputs():
            return _run(case, rows, cols)
    finally:
        torch.set_num_threads(threads)


def _run(case: Case, rows: Tensor, cols: Tensor) -> Outcome:
    use = Use(case, rows, cols)
    if case.hostile in ("index_high", "index_negative"):
        use.spoil_index(case.hostile == "index_negative")
    elif case.hostile == "crow_falls":
        use.handles(True)[0][1] = rows.numel() + 1
    expected = expected_refusal(case, rows.numel())
    outcome = _attempt(use, expected)
    if outcome.kind != "ok":
        return outcome
    for step in (_again, _changed):
        outcome = step(use)
        if outcome.failed:
            return outcome
    return Outcome("ok")


def _attempt(use: Use, expected: str | None) -> Outcome:
    """One call and its verification."""
    try:
        values, gradients = use.call()
    except Exception as error:
        return _of_error(use.case, error, expected)
    if expected is not None:
        return Outcome("served", f"expected a refusal like {expected!r}")
    truth = use.truth()
    told = difference(values, truth.result())
    if told is None and gradients:
        upstream = use.upstream.to(values.device).double()
        for name, gradient in gradients.items():
            told = difference(gradient, truth.gradient(name, upstream))
            if told is not None:
                told = f"gradient of {name}: {told}"
                break
    return Outcome("ok") if told is None else Outcome("wrong", told)


def _of_error(case: Case, error: Exception, expected: str | None) -> Outcome:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, Wrong):
        return Outcome("wrong", str(error))
    if "CUDA error" in text or "cudaError" in text or "CUDA_ERROR" in text:
        return Outcome("crash", text)
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    clear = (
        isinstance(error, (ValueError, TypeError, NotImplementedError))
        and frames[-1].filename.startswith(_OURS)
        and _NAMES.search(str(error)) is not None
    )
    if not clear:
        return Outcome("unclear", f"{text} ({place})")
    if expected is not None:
        if re.search(expected, str(error)) or may_refuse(case, str(error)):
            return Outcome("refused", text)
        return Outcome("unclear", f"{text} ({place}); expected words like {expected!r}")
    if may_refuse(case, str(error)):
        return Outcome("refused", text)
    return Outcome("not served", f"{text} ({place})")


def _again(use: Use) -> Outcome:
    """The same call once more, or on a copy."""
    case = use.case
    if case.again is None:
        return Outcome("ok")
    if case.again == "repeat":
        return _repeated(use)
    try:
        other = use.copied(case.again)
    except Exception as error:
        return Outcome("unclear", f"{case.again}: {type(error).__name__}: {error}")
    outcome = _told_of(case.again, _attempt(other, None))
    if outcome.failed or case.again == "copy" or case.kind in NUMPY or case.entry == "op":
        return outcome
    if not use.rows.numel() or "v" in case.gradients:
        return outcome
    use.turn()
    outcome = _told_of(f"{case.again}, the original changed since", _attempt(other, None))
    if outcome.failed:
        return outcome
    return _told_of(f"changed in place after a {case.again}", _attempt(use, None))


def _repeated(use: Use) -> Outcome:
    try:
        first, second = use.call(), use.call()
    except Exception as error:
        return _told_of("repeat", _of_error(use.case, error, None))
    if not torch.equal(_bits(first[0]), _bits(second[0])):
        return Outcome("wrong", "the same call gives other bits")
    for name, gradient in first[1].items():
        if not torch.equal(_bits(gradient), _bits(second[1][name])):
            return Outcome("wrong", f"the gradient of {name} has other bits in the same call")
    return _told_of("repeat", _attempt(use, None))


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(torch.uint8) if x.numel() else x


def _changed(use: Use) -> Outcome:
    """One more call after S was changed."""
    case, change = use.case, use.case.change
    if change is None or not use.rows.numel():
        return Outcome("ok")
    frozen = _is_frozen(case)
    expected = None
    if change == "values":
        use.new_values()
    elif change == "refill":
        use.refill()
    elif change == "fresh":
        use.freshen()
    elif frozen:
        before = use.rows, use.cols
        use.turn(change)
        use.rows, use.cols = before
    elif change == "out_of_range" and case.heads != 0:
        use.spoil_index(case.seed % 2 == 0)
        expected = BAD_INDEX
    else:
        use.turn(change)
    outcome = _told_of(f"after change={change}", _attempt(use, expected))
    return outcome if outcome.failed else Outcome("ok")


def _is_frozen(case: Case) -> bool:
    """Whether S's indices are copied when it is planned, so that later changes are not the plan's:
    those of numpy arrays, and of the tensors that a sparse tensor was made of."""
    if case.entry not in ("plan", "plan_out"):
        return False
    if case.kind in ("torch_csr", "torch_coo", "torch_coo_uncoalesced", "torch_bsr"):
        return case.change == "original"
    return case.kind in (*SCIPY, "tuple_numpy")


def _told_of(what: str, outcome: Outcome) -> Outcome:
    return Outcome(outcome.kind, f"{what}: {outcome.text}") if outcome.text else outcome
