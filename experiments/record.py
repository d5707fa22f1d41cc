"""Records: one JSON line for each method of a case, and the store that holds them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from experiments.errors import ExperimentError, RowsFailed

_log = logging.getLogger(__name__)

STATUSES = ("ok", "skipped", "wrong", "failed", "out_of_memory", "timeout", "cached")
BAD = ("wrong", "failed", "out_of_memory", "timeout")


@dataclass
class Record:
    """What is known of one method on one case. Times in ms; samples_ms is empty unless ok.

    key: what was measured, by which code, where; equal keys mean the same measurement. session:
    rows of one session were measured interleaved. prepare_ms: the median of several preparations.
    first_call_ms: wall times of whole calls on indices never seen; empty in records made before it
    was measured. error: largest error relative to |a_i| |b_j|.
    """

    key: str
    session: str
    matrix: str
    definition: dict[str, Any]
    m: int
    n: int
    nnz: int
    k: int
    dtype: str
    seed: int
    method: str
    status: str
    reason: str = ""
    prepare_ms: float | None = None
    first_call_ms: list[float] = field(default_factory=list)
    samples_ms: list[float] = field(default_factory=list)
    checked: int = 0
    wrong: int = 0
    error: float | None = None
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def sparsity(self) -> float:
        return 1 - self.nnz / (self.m * self.n)

    @property
    def median_ms(self) -> float | None:
        return self.percentile_ms(50)

    def percentile_ms(self, percent: float) -> float | None:
        return float(np.percentile(self.samples_ms, percent)) if self.samples_ms else None

    @property
    def median_first_call_ms(self) -> float | None:
        return float(np.median(self.first_call_ms)) if self.first_call_ms else None

    @property
    def gflops(self) -> float | None:
        """Useful GFLOP/s, 2 nnz k over the median time."""
        return 2e-6 * self.nnz * self.k / self.median_ms if self.median_ms else None


def key_of(parts: dict[str, Any]) -> str:
    """A short digest of what defines a measurement."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


Kind = TypeVar("Kind", bound="Keyed")


class Keyed(Protocol):
    """What a store holds: dataclasses with a key, measured in a session."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    key: str
    session: str


def load_all(paths: Iterable[str], kind: type[Kind], command: str) -> list[Kind]:
    """All records of these files, in their order. command: what would have measured some."""
    paths, records = list(paths), []
    for path in paths:
        if not Path(path).is_file():
            raise ExperimentError(
                f"no records at {path}; measure some with `python -m experiments {command}`"
            )
        records += Store(path, kind).load().values()
    if not records:
        raise ExperimentError(f"no records in {', '.join(paths)}")
    return records


def refuse_bad(statuses: Mapping[str, str]) -> None:
    """RowsFailed if a row, by name, is wrong or failed."""
    bad = [name for name, status in statuses.items() if status in BAD]
    if bad:
        raise RowsFailed(f"{len(bad)} of {len(statuses)} rows are not right: {', '.join(bad)}")


class Store(Generic[Kind]):
    """A file of JSON lines that only grows; of equal keys the last counts. kind: of its records."""

    def __init__(self, path: str | Path, kind: type[Kind]) -> None:
        self.path, self.kind = Path(path), kind

    def load(self) -> dict[str, Kind]:
        """All records by key. A last line cut off by a crash is passed over with a warning."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise ExperimentError(f"cannot read records from {self.path}: {error}") from None
        records = {}
        lines = text.split("\n")
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                record = self._parse(line)
            except (ValueError, TypeError) as error:
                if number == len(lines):  # no newline: it was being written
                    _log.warning("%s: line %d is cut off; passed over", self.path, number)
                    continue
                raise ExperimentError(f"{self.path}: line {number} is no record: {error}") from None
            records[record.key] = record
        return records

    def session(self, keys: Iterable[str]) -> list[Kind]:
        """The records of these keys if all are here and of one session, else none.

        Only times of one interleaved session compare.
        """
        known = self.load()
        found = [known.get(key) for key in keys]
        records = [record for record in found if record is not None]
        whole = len(records) == len(found) and len({record.session for record in records}) == 1
        return records if whole else []

    def append(self, record: Kind) -> None:
        """Add a line in one write, so that concurrent runs do not mix theirs."""
        line = json.dumps(asdict(record), allow_nan=True) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if self._cut_off():
                line = "\n" + line
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def _cut_off(self) -> bool:
        """Whether a crash left a last line without its end."""
        with open(self.path, "rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"

    def _parse(self, line: str) -> Kind:
        values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError(f"an object is expected, got {type(values).__name__}")
        known = {f.name for f in fields(self.kind)}
        return self.kind(**{name: value for name, value in values.items() if name in known})
