"""Compares two commits: the last measurement of each case and method on the same device."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.bench import table
from experiments.bench.digest import ROOT
from experiments.bench.errors import ExperimentError
from experiments.bench.record import Record

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective

Row = tuple[object, ...]


def as_markdown(objective: AnyObjective, records: Sequence[Record], commits: Sequence[str]) -> str:
    """A row per case and method: the median at each of two commits, and the second over the first.

    A cell is empty where a commit has no time. "+" marks a time of code with uncommitted changes;
    the code as committed is preferred.
    """
    if len(commits) != 2:
        raise ExperimentError(f"compare takes two commits, [A,B], got {len(commits)}")
    sides = [_newest(records, commit) for commit in commits]
    labels = [f"{commit[:12]} ms" for commit in commits]
    if labels[0] == labels[1]:
        raise ExperimentError(f"compare takes two different commits, got {commits[0]} twice")
    cases = table.short_labels(objective, records)
    lines = []
    for row in dict.fromkeys([*sides[0], *sides[1]]):
        pair = [side.get(row) for side in sides]
        r = next(record for record in pair if record is not None)
        times = [record.median_ms if record else None for record in pair]
        ratio = f"{times[1] / times[0]:.3f}" if times[0] and times[1] else ""
        lines.append(
            {
                "device": r.place_name,
                **cases[r.case],
                "method": r.name,
                **{label: _cell(record) for label, record in zip(labels, pair, strict=True)},
                "ratio": ratio,
            }
        )
    note = f"Median times; ratio: {commits[1][:12]} over {commits[0][:12]}, below 1 is faster."
    dirty = any(r.environment.get("dirty") for side in sides for r in side.values())
    if dirty:
        note += " + : measured with uncommitted changes."
    return f"{note}\n\n{table.as_text(lines)}\n"


def _newest(records: Sequence[Record], commit: str) -> dict[Row, Record]:
    """The newest record of every case and method at a commit, in order of appearance."""
    own = _of_commit(records, commit)
    # What comes later replaces what came before: committed code comes last.
    own.sort(key=lambda r: not r.environment.get("dirty"))
    return {(*r.case, r.name): r for r in own}


def _of_commit(records: Sequence[Record], commit: str) -> list[Record]:
    """The records of a commit, named by the beginning of its hash or as git names it."""
    for name in filter(None, (commit, _resolved(commit))):
        own = [r for r in records if _hash(r).startswith(name)]
        hashes = sorted({_hash(r) for r in own})
        if len(hashes) > 1:
            raise ExperimentError(f"commit {commit!r} is ambiguous: {', '.join(hashes)}")
        if own:
            return own
    measured = ", ".join(dict.fromkeys(_hash(r)[:12] or "unknown" for r in records))
    raise ExperimentError(f"no records of commit {commit!r}; there are some of {measured}")


def _hash(r: Record) -> str:
    return str(r.environment.get("commit", ""))


def _resolved(commit: str) -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", "--end-of-options"]
    try:
        done = subprocess.run([*command, f"{commit}^{{commit}}"], capture_output=True, text=True)
    except (OSError, ValueError):  # no git, or a name that none can have
        return ""
    return done.stdout.strip()


def _cell(record: Record | None) -> str:
    if record is None or record.median_ms is None:
        return "" if record is None else record.status
    return f"{record.median_ms:.4g}" + (" +" if record.environment.get("dirty") else "")
