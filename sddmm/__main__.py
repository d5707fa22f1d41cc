"""`python -m sddmm` prints the environment for a bug report."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Iterator
from typing import Any

from gemm_core.runtime import variables
from sddmm.diagnostics import collect


def lines(value: Any, indent: str = "") -> Iterator[str]:
    """The report as text: a line for each fact, its parts indented."""
    items = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    for name, part in items:
        head = f"{indent}{name}: " if name is not None else indent
        if isinstance(part, (dict, list)) and part:
            yield head.rstrip()
            yield from lines(part, indent + "  ")
        else:
            yield head + ("none" if part in ({}, []) else str(part))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m sddmm", description="Prints the environment for a bug report."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    report = collect()
    if options.json:
        print(json.dumps(report, indent=2))
        return
    print("\n".join(lines(report)))
    print("all variables:")
    for v in variables.VARIABLES.values():
        print(f"  {v.name} (default: {v.default}): {v.meaning}")


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # a reader such as head may have seen enough
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
