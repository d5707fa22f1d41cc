"""What the HTML page says of its records besides their times: machines, statuses, noise."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from experiments.bench import table
from experiments.bench.page.tables import Table
from experiments.bench.record import BAD, NOISY, Record

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective

# They change with the load, so that they distinguish no environment.
_CLOCKS = {"clocks.sm": "SM clock at the start", "clocks.mem": "memory clock at the start"}
_GPU = {
    "driver_version": "driver", "cuda": "CUDA of torch", "clocks.max.sm": "highest SM clock",
    "power.limit": "power limit", **_CLOCKS,
}  # fmt: skip


@dataclass
class Environment:
    """One state of machine, libraries and code, and the records that were measured in it."""

    values: Mapping[str, Any]
    records: list[Record] = field(default_factory=list)

    @property
    def commit(self) -> str:
        return str(self.values.get("commit") or "")

    @property
    def is_dirty(self) -> bool:
        return bool(self.values.get("dirty"))

    @property
    def facts(self) -> dict[str, str]:
        """What is known, by its name; what a record does not say is left out."""
        e, gpu = self.values, _object(self.values.get("gpu"))
        libraries = _object(e.get("libraries"))
        cpu = f"{e.get('cpu') or 'unknown'}, {e.get('threads')} threads"
        days = sorted({r.date[:10] for r in self.records if r.date})
        dirty = " with uncommitted changes" if self.is_dirty else ""
        facts = {
            "device": e.get("device") or "unknown",
            **{label: ", ".join(self._values_of(name)) for name, label in _GPU.items() if gpu},
            "CPU": cpu + (f" of {e['cpu_count']}" if e.get("cpu_count") else ""),
            "memory": f"{e['memory_gb']} GB" if e.get("memory_gb") else "",
            "system": e.get("os"),
            "Python": e.get("python"),
            "libraries": ", ".join(f"{name} {version}" for name, version in libraries.items()),
            "commit": (self.commit or "unknown") + dirty,
            "code digest": e.get("source"),
            "measured (UTC)": " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "",
            "records": f"{len(self.records):,}" if self.records else "",
        }
        return {name: str(value) for name, value in facts.items() if value}

    def _values_of(self, name: str) -> list[str]:
        gpus = [
            _object(e.get("gpu")) for e in (self.values, *(r.environment for r in self.records))
        ]
        return list(dict.fromkeys(str(gpu[name]) for gpu in gpus if name in gpu))


def environments(records: Iterable[Record]) -> list[Environment]:
    """The environments of the records, in their order."""
    found: dict[str, Environment] = {}
    for r in records:
        gpu = {k: v for k, v in _object(r.environment.get("gpu")).items() if k not in _CLOCKS}
        key = json.dumps({**r.environment, "gpu": gpu}, sort_keys=True, default=str)
        found.setdefault(key, Environment(r.environment)).records.append(r)
    return list(found.values())


def overview(objective: AnyObjective, records: Sequence[Record]) -> dict[str, str]:
    """The first lines of the page: how much was measured, where, and how it went."""
    statuses = [r.status for r in records]
    counts = {status: statuses.count(status) for status in dict.fromkeys(statuses)}
    timed = [r for r in records if r.samples_ms]
    single = sum(len(r.samples_ms) == 1 for r in timed)
    facts = {
        "found": objective.finding(records),
        "records": f"{len(records):,}: " + ", ".join(f"{n:,} {s}" for s, n in counts.items()),
        "cases": f"{len({r.case for r in records}):,}",
        "methods": _some(list(dict.fromkeys(r.name for r in sorted(records, key=_is_forced)))),
        "devices": ", ".join(dict.fromkeys(r.place_name for r in records)),
        "noise": f"{sum(r.is_noisy for r in timed):,} of {len(timed):,} times are noisy: their p80 "
        f"is more than {NOISY:g} times their p20"
        + (f"; {single:,} are of a single sample" if single else ""),
        "not right": ", ".join(f"{counts[s]:,} {s}" for s in BAD if s in counts),
    }
    return {name: text for name, text in facts.items() if text} if records else {}


def without_time(objective: AnyObjective, records: Sequence[Record]) -> Table:
    """Why rows have no time: each reason of a method once, what went wrong first."""
    names = _case_names(objective, records)
    cases: dict[tuple[str, str, str], list[str]] = {}
    for r in sorted(records, key=lambda r: r.status not in BAD):
        if r.status != "ok" or r.reason:
            cases.setdefault((r.status, r.name, r.reason), []).append(names[r.case])
    rows = [
        {"status": status, "method": method, "reason": reason, "cases": len(own),
         "which": _some(own, "; ", 3)}
        for (status, method, reason), own in cases.items()
    ]  # fmt: skip
    note = "A method that does not serve a case says why; the reasons of failures are the errors."
    return Table("Refusals and failures", rows, note=note)


def noisy(objective: AnyObjective, records: Sequence[Record]) -> Table:
    """The times whose samples are spread, the widest first."""
    own = sorted((r for r in records if r.is_noisy), key=lambda r: -(r.spread or 0))
    labels = table.short_labels(objective, records)
    several = len({r.place for r in records}) > 1
    rows = [
        {
            **({"device": r.place_name} if several else {}),
            **labels[r.case],
            "method": r.name,
            "median_ms": r.median_ms,
            "p20_ms": r.percentile_ms(20),
            "p80_ms": r.percentile_ms(80),
            "p80_over_p20": r.spread,
            "samples": len(r.samples_ms),
        }
        for r in own
    ]
    note = (
        f"Times whose p80 is more than {NOISY:g} times their p20; measure these again (force=true)."
    )
    return Table("Noise", rows, note=note)


def _case_names(
    objective: AnyObjective, records: Sequence[Record]
) -> dict[tuple[object, ...], str]:
    several = len({r.place for r in records}) > 1
    places = {r.case: r.place_name for r in records}
    names = {}
    for case, (first, *rest) in (
        (case, list(cells.items()))
        for case, cells in table.short_labels(objective, records).items()
    ):
        words = [first[1], *(f"{name}={cell}" for name, cell in rest)]
        names[case] = " ".join(words) + (f" on {places[case]}" if several else "")
    return names


def _some(names: Sequence[str], separator: str = ", ", limit: int = 12) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return separator.join(names[:limit]) + more


def _is_forced(r: Record) -> bool:
    return bool(getattr(r, "is_forced", False))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
