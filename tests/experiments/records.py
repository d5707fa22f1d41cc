"""Records of SDDMM for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.sddmm.record import Record


def record(method: str, ms: float | None, **changes: Any) -> Record:
    details = [str(changes.get(name, "")) for name in ("k", "nnz", "session")]
    base = Record(
        key="-".join([method, *details]),
        session="s",
        matrix="10x10",
        definition={},
        m=10,
        n=10,
        nnz=50,
        k=8,
        dtype="float32",
        seed=0,
        method=method,
        status="ok" if ms else "skipped",
        reason="" if ms else "no such library",
        prepare_ms=1.5,
        first_call_ms=[ms + 1, ms + 2, ms + 6] if ms else [],
        samples_ms=[ms, ms * 2, ms * 3] if ms else [],
        error=1e-8,
        environment={"device": "a CPU", "threads": 2, "libraries": {"torch": "9.9"}},
    )
    return replace(base, **changes)
