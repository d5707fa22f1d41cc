"""The store of records: a file of JSON lines that only grows.

It survives killed runs, full disks and other runs that append at the same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, asdict, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_args, get_origin, get_type_hints

from experiments.bench.errors import ExperimentError, NoRecords, RecordsLost, RowsFailed
from experiments.bench.record import BAD, STATUSES

# No record is longer: a longer line is read past without being held in memory.
LONGEST_LINE = 1 << 24

# How many of the lines that are no records are described.
_DESCRIBED = 3


class Keyed(Protocol):
    """The fields of a record that the store reads."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    retired: ClassVar[frozenset[str]]
    key: str
    session: str
    status: str
    samples_ms: list[float]
    environment: dict[str, Any]


Kind = TypeVar("Kind", bound=Keyed)


def load_all(
    paths: Iterable[str], kind: type[Kind], command: str, complaints: list[str] | None = None
) -> list[Kind]:
    """All records of these files, in their order. command: what measures such records.

    complaints: gets the sentences that say which lines are passed over.
    """
    paths, records = list(paths), []
    for path in paths:
        store = Store(path, kind)
        if not store.path.exists():
            raise ExperimentError(
                f"no records at {path}; measure some with `python -m experiments {command}`"
            )
        records += store.records(complaints)
    if not records:
        raise NoRecords(f"no records in {', '.join(paths)}")
    return records


class Store(Generic[Kind]):
    """A file of records, one JSON line each. kind: the class of the records."""

    def __init__(self, path: str | Path, kind: type[Kind]) -> None:
        self.path, self.kind = Path(path), kind

    def load(self) -> dict[str, Kind]:
        """All records by key; of equal keys the last counts."""
        return {record.key: record for record in self.records()}

    def records(self, complaints: list[str] | None = None) -> list[Kind]:
        """Every record, in the order of the file.

        Lines that are no records are passed over, and so are fields that this version does not
        know; one warning says which, and is added to the complaints. Retired fields are passed over
        without one.
        """
        self._refuse_special_file()
        records: list[Kind] = []
        broken: list[str] = []
        unknown: set[str] = set()
        names = {f.name for f in fields(self.kind)}
        for number, line in self._lines():
            try:
                values = _parse(line)
                unknown |= values.keys() - names - self.kind.retired
                records.append(_record(self.kind, {k: values[k] for k in names & values.keys()}))
            except (ValueError, TypeError, RecursionError) as error:
                reason = str(error).splitlines()[0] if line.endswith(b"\n") else "cut off"
                broken.append(f"line {number} ({reason})")
        found = _complaints(self.path, broken, unknown)
        for complaint in found:
            _warn_once(complaint)
        if complaints is not None:
            complaints += found
        return records

    def refuse_unwritable(self) -> None:
        """Raise ExperimentError if records could not be appended; makes the folder and the file."""
        os.close(self._open())

    def append(self, record: Kind) -> None:
        """Add one line, whole or not at all; raises ExperimentError if it cannot be kept.

        A lock orders the appends of concurrent runs. A line that a killed run left without its end
        stays a line of its own.
        """
        line = json.dumps(asdict(record), allow_nan=True).encode() + b"\n"
        descriptor = self._open()
        try:
            with contextlib.suppress(OSError):  # some network folders have no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            try:
                _write_all(descriptor, line)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        except OSError as error:
            raise ExperimentError(f"cannot write to {self.path}: {error.strerror}") from None
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        """A descriptor that appends; the folder and the file are made if they are absent."""
        self._refuse_special_file()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise ExperimentError(
                f"cannot write records to {self.path}: {error.strerror}; choose another file "
                f"with records=FILE"
            ) from None

    def _refuse_special_file(self) -> None:
        """A folder, a device or a pipe is refused before it is opened, which could never end."""
        try:
            mode = self.path.stat().st_mode
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = error.strerror if isinstance(error, OSError) else error
            raise ExperimentError(f"cannot use {str(self.path)!r} for records: {reason}") from None
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
            raise ExperimentError(f"records must be in a plain file, and {self.path} is {kind}")

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines that are not empty, numbered from 1; of overlong ones the beginning."""
        try:
            with open(self.path, "rb") as file:
                number = 0
                while line := file.readline(LONGEST_LINE):
                    number += 1
                    part = line
                    while len(part) == LONGEST_LINE and not part.endswith(b"\n"):
                        part = file.readline(LONGEST_LINE)
                    if line.strip():
                        yield number, line
        except FileNotFoundError:
            return
        except OSError as error:
            raise ExperimentError(f"cannot read {self.path}: {error.strerror}") from None


class Keeper(Generic[Kind]):
    """Appends a run's records to a store. A record that cannot be kept does not end the run."""

    def __init__(self, store: Store[Kind]) -> None:
        self._store = store
        self.kept = 0
        self._errors: list[str] = []

    def __call__(self, record: Kind) -> None:
        try:
            self._store.append(record)
            self.kept += 1
        except ExperimentError as error:
            self._errors.append(str(error))

    def finish(self, statuses: Mapping[str, str]) -> None:
        """Raise if a record was not kept (RecordsLost), or if a row is not right (RowsFailed)."""
        bad = [name for name, status in statuses.items() if status in BAD]
        failures = (
            f"{len(bad)} of {len(statuses)} rows are not right: {', '.join(bad)}" if bad else ""
        )
        if self._errors:
            count = len(self._errors)
            lost = f"{count} of {count + self.kept} records were not kept: {self._errors[0]}"
            raise RecordsLost("; ".join(filter(None, [lost, failures])))
        if bad:
            raise RowsFailed(failures)


def _write_all(descriptor: int, line: bytes) -> None:
    """Write until nothing is left: a full disk accepts a part of a line before it fails."""
    while line:
        line = line[os.write(descriptor, line) :]


def _parse(line: bytes) -> dict[str, Any]:
    if len(line) == LONGEST_LINE:
        raise ValueError(f"longer than {LONGEST_LINE} bytes")
    values = json.loads(line.decode())
    if not isinstance(values, dict):
        raise ValueError(f"an object is expected, got {type(values).__name__}")
    return values


def _record(kind: type[Kind], values: dict[str, Any]) -> Kind:
    """The record of these fields; raises ValueError or TypeError where they cannot be one."""
    hints = _hints(kind)
    lacking = [f.name for f in fields(kind) if _is_required(f) and f.name not in values]
    if lacking:
        raise ValueError(f"lacks {', '.join(lacking[:_DESCRIBED])}")
    for name, value in values.items():
        if not _fits(value, hints[name]):
            raise ValueError(f"{name} must be {_words(hints[name])}, got {_short(value)}")
    record = kind(**values)
    if record.status not in STATUSES:
        raise ValueError(f"unknown status {_short(record.status)}")
    if not all(0 <= sample < math.inf for sample in record.samples_ms):
        raise ValueError("samples_ms must be times >= 0")
    for name in {"m", "n", "nnz", "k"} & values.keys():
        if values[name] < 0:
            raise ValueError(f"{name} must be >= 0, got {values[name]}")
    if not isinstance(record.environment.get("libraries", {}), dict):
        raise ValueError("environment.libraries must be an object")
    return record


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value out of JSON is of a field's type; a whole number serves as a float."""
    if isinstance(value, bool):
        return hint in (bool, Any)
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return False
    if hint is float:  # as most values are
        return isinstance(value, int | float)
    origin, parts = _parts(hint)
    if origin is UnionType:
        return any(_fits(value, part) for part in parts)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, parts[0]) for item in value)
    return hint is Any or isinstance(value, origin or hint)


@functools.cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The origin and the arguments of a type, which typing takes a microsecond each to find."""
    return get_origin(hint), get_args(hint)


def _words(hint: Any) -> str:
    if get_origin(hint) is UnionType:
        return " or ".join("null" if part is NoneType else _words(part) for part in get_args(hint))
    return str(getattr(hint, "__name__", hint)) if get_origin(hint) is None else str(hint)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _complaints(path: Path, broken: list[str], unknown: set[str]) -> list[str]:
    """What was passed over, a sentence each."""
    found = []
    if broken:
        more = f" and {len(broken) - _DESCRIBED} more" if len(broken) > _DESCRIBED else ""
        lines = ", ".join(broken[:_DESCRIBED]) + more
        found.append(f"{path}: passed over what is no record: {lines}")
    if unknown:
        fields = ", ".join(sorted(_short(name) for name in unknown)[:_DESCRIBED])
        found.append(f"{path}: passed over fields that this version does not know: {fields}")
    return found


@functools.cache
def _warn_once(text: str) -> None:
    """A sweep reads its records before every job, but says once what is wrong with them."""
    print(f"warning: {text}", file=sys.stderr)
