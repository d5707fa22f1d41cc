"""The command lines that measure the cases of records again."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.bench.arguments import CONF
from experiments.bench.sources import SOURCES, Uniform
from experiments.sddmm.record import Record

_SIZE = re.compile(r"[1-9]\d*x[1-9]\d*")


def commands(objective: str, records: Sequence[Record]) -> list[str]:
    """A line for each case, or a comment that says why there is none.

    What a study lists is measured by the study, with all other problems on the same matrix.
    objective: the value of the key of that name.
    """
    cases: dict[tuple[object, ...], list[Record]] = {}
    for r in records:
        cases.setdefault((r.matrix, *r.case, *_flags(r).values()), []).append(r)
    return list(dict.fromkeys(_command(objective, own) for own in cases.values()))


def _command(objective: str, records: Sequence[Record]) -> str:
    """records: those of one case."""
    r = records[0]
    program = [] if r.place[1] is None else [f"OMP_NUM_THREADS={r.place[1]}"]
    program += ["python", "-m", "experiments", "run"]
    on_cpu = [] if r.environment.get("gpu") else ["device=cpu"]
    matrix = _matrix_arguments(r)
    if matrix:
        named = [] if objective == "sddmm" else [f"objective={objective}"]
        kernels = ["kernels=true"] if any(own.is_forced for own in records) else []
        sizes = [f"k={r.k}", f"dtype={r.dtype}", f"heads={r.heads}", f"seed={r.seed}"]
        flags = [f"{name}=true" for name, is_set in _flags(r).items() if is_set]
        return shlex.join(
            [*program, *named, *matrix, *sizes, *flags, *kernels, _methods(records), *on_cpu]
        )
    for study in _studies(objective, r):
        seed = [f"seed={r.seed}"] if r.seed else []
        return shlex.join([*program, f"+study={study}", f"only=[{r.matrix}]", *seed, *on_cpu])
    name, definition = json.dumps(r.matrix), json.dumps(r.definition, default=str)
    return f"# no configuration in conf/ defines the matrix {name} as {definition}"


def _matrix_arguments(r: Record) -> list[str]:
    """The arguments that name the record's matrix by itself; none where no argument does."""
    defined = r.definition
    if defined.get("source") == "File" and defined.get("path"):
        return [f"+matrix={defined['path']}"]
    if _same(_definitions().get(r.matrix), defined):
        return [f"+matrix={r.matrix}"]
    if _SIZE.fullmatch(r.matrix) and defined.get("source") == "Uniform":
        rows, cols = (int(part) for part in r.matrix.split("x"))
        sparsity = defined.get("sparsity")
        if isinstance(sparsity, float) and 0 <= sparsity < 1:
            plain = Uniform(rows=rows, cols=cols, sparsity=sparsity)
            if _same(plain.definition(), defined):
                return [f"+matrix={r.matrix}", f"sparsity={sparsity!r}"]
    return []


def _methods(records: Sequence[Record]) -> str:
    names = dict.fromkeys(r.method for r in records if not r.is_forced)
    return f"methods=[{','.join(names)}]"


def _flags(r: Record) -> dict[str, bool]:
    """The keys that are true or false, and that the records of some objectives hold."""
    return {name: bool(getattr(r, name, False)) for name in ("transpose", "backward", "scaled")}


@cache
def _definitions() -> dict[str, dict[str, Any]]:
    """The definition of each matrix that has a YAML, by its name."""
    found = {}
    for path in sorted((CONF / "matrix").glob("*.yaml")):
        fields = _read(path)
        source = fields.pop("defaults")[0]["/source@_here_"]
        found[path.stem] = SOURCES[source](**fields).definition()
    return found


def _studies(objective: str, r: Record) -> Iterator[str]:
    """The studies that list the record's problem."""
    heads = f" {r.heads} heads" if r.heads > 1 else ""
    at = f"{r.k} {r.dtype}{heads}"
    for name, study in _study_files():
        entry = dict(study["problems"].get(r.matrix) or {})
        same_problem = study.get("objective", "sddmm") == objective and at in entry.get("at", [])
        flags = _flags(r)
        if not same_problem or any(bool(study.get(name)) != own for name, own in flags.items()):
            continue
        source = SOURCES[entry.pop("source")]
        own = {key: value for key, value in entry.items() if key not in ("family", "at")}
        if _same(source(**own).definition(), r.definition):
            yield name


@cache
def _study_files() -> Iterable[tuple[str, Mapping[str, Any]]]:
    """The studies that list problems; one that measures our kernels too comes first."""
    studies = [(path.stem, _read(path)) for path in sorted((CONF / "study").glob("*.yaml"))]
    listed = [(name, study) for name, study in studies if "problems" in study]
    return sorted(listed, key=lambda pair: not pair[1].get("kernels", False))


def _read(path: Path) -> dict[str, Any]:
    return dict(OmegaConf.to_container(OmegaConf.load(path), resolve=False))  # type: ignore[arg-type]


def _same(definition: Mapping[str, Any] | None, other: Mapping[str, Any]) -> bool:
    return definition is not None and dict(definition) == dict(other)
