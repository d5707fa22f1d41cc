"""Names SDDMM cases in tables: a matrix, and what distinguishes it from others of its name."""

from __future__ import annotations

from collections.abc import Iterable

from experiments.sddmm.record import Record


def shown_names(records: Iterable[Record]) -> dict[tuple[object, ...], str]:
    """The name of each case's matrix; where rows would be alike, with what distinguishes them."""
    records = list(records)
    alike: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for r in records:
        others = alike.setdefault(_appearance(r), [])
        if (own := _details(r)) not in others:
            others.append(own)
    return {
        r.case: _cell(r.matrix + _difference(_details(r), alike[_appearance(r)])) for r in records
    }


def _cell(name: str) -> str:
    """A name, of a file perhaps, that leaves its row whole."""
    return " ".join(name.split())


def _appearance(r: Record) -> tuple[object, ...]:
    return (r.place, r.matrix, r.nnz, r.k, r.dtype, r.heads, r.scaled)


def _details(r: Record) -> dict[str, object]:
    """The properties of a case that have no column. A path is none: a file may move."""
    details = {f"matrix.{name}": value for name, value in r.definition.items() if name != "path"}
    return {**details, "seed": r.seed}


def _difference(own: dict[str, object], alike: list[dict[str, object]]) -> str:
    names = [name for name in own if any(other.get(name) != own[name] for other in alike)]
    text = ", ".join(f"{name}={str(own[name])[:8]}" for name in names)
    return f" ({text})" if text else ""
