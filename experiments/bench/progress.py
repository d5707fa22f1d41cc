"""Shows the current step of a run on a terminal, and nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """say(text) shows a line that the next one replaces, if rich is here and stderr a terminal."""
    try:
        from rich.console import Console
    except ImportError:
        Console = None  # type: ignore[assignment, misc]
    if Console is None or not sys.stderr.isatty():
        yield lambda text: None
        return
    with Console(stderr=True).status("") as status:
        yield status.update
