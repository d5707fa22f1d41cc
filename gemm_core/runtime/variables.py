"""The environment variables of these packages: their names, defaults, meanings and valid values.

This is the one table of them. `python -m sddmm` prints it, docs/environment.md shows it, and
importing a package refuses a name that is not in it and a value that is not valid.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PREFIX = "SDDMM_"


class Variable(NamedTuple):
    """One variable. kind: which values are valid, a key of `_RULES`. read: when it is read."""

    name: str
    kind: str
    default: str
    meaning: str
    read: str

    def wrong(self, value: str) -> str | None:
        """None if the value is valid, else what is. An empty value is the default."""
        valid = {"flag": value in ("0", "1"), "folder": _can_be_folder(value)}
        valid["commit"] = re.fullmatch("[0-9a-f]{7,40}", value) is not None
        return None if not value or valid[self.kind] else _RULES[self.kind]


_RULES = {
    "flag": "0 or 1",
    "folder": "a folder, or the name of one to create, written out (no ~)",
    "commit": "7 to 40 hexadecimal digits",
}

KERNEL_CACHE = Variable(
    "SDDMM_KERNEL_CACHE",
    "folder",
    "sddmm/kernels in the user's cache folder",
    "The folder of compiled GPU kernels. One that cannot be written only costs time.",
    "when a kernel is compiled",
)
CHECK_INDICES = Variable(
    "SDDMM_CHECK_INDICES",
    "flag",
    "0",
    "With 1 every use of a pattern checks its indices for changes that torch does not count, such "
    "as one through a numpy array that shares their memory.",
    "when `sddmm` is imported",
)
DATASETS_CACHE = Variable(
    "SDDMM_DATASETS_CACHE",
    "folder",
    "sddmm/datasets in the user's cache folder",
    "The folder of generated matrices, of the laboratory.",
    "when a matrix is generated",
)
COMMIT = Variable(
    "SDDMM_COMMIT",
    "commit",
    "what git reports",
    "The commit that the laboratory writes into its records, for a copy without git's history.",
    "when a record is written",
)
VARIABLES = {v.name: v for v in (KERNEL_CACHE, CHECK_INDICES, DATASETS_CACHE, COMMIT)}

FOREIGN = {
    "XDG_CACHE_HOME": "The user's cache folder, `~/.cache` if it is not set.",
    "CUDA_VISIBLE_DEVICES": "The GPUs that torch sees.",
    "NUMBA_CACHE_DIR": "The folder of numba's compiled CPU kernels.",
    "NUMBA_DISABLE_JIT": "With 1 numba compiles nothing, and torch computes on CPUs.",
    "OMP_NUM_THREADS": "The number of threads of a computation on the CPU, as torch reads it.",
    "RANK": "The number of a process that `torchrun` started; 0 keeps the laboratory's records.",
    "LOCAL_RANK": "The GPU of a process that `torchrun` started, in the laboratory.",
    "TORCHINDUCTOR_COMPILE_THREADS": "The processes in which torch compiles FlexAttention.",
    "COLUMNS": "The width of the laboratory's tables in a terminal.",
    "HYDRA_FULL_ERROR": "With 1 the laboratory shows an error with its traceback.",
}
"""Variables of other libraries on which these packages depend, by name: their meanings."""


def rows() -> list[dict[str, str]]:
    """The table as documentation shows it, a row per variable."""
    return [
        {"variable": f"`{v.name}`", "default": v.default, "valid": _RULES[v.kind],
         "meaning": v.meaning, "read": v.read}
        for v in VARIABLES.values()
    ]  # fmt: skip


def in_force(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that are set: ours, known or not, and those of other libraries."""
    environ = os.environ if environ is None else environ
    names = sorted(name for name in environ if name.startswith(PREFIX))
    return {name: environ[name] for name in (*names, *FOREIGN) if name in environ}


def mistakes(environ: Mapping[str, str] | None = None) -> list[str]:
    """A line for every variable of ours whose name is unknown or whose value is not valid."""
    environ = os.environ if environ is None else environ
    lines = []
    for name in sorted(name for name in environ if name.startswith(PREFIX)):
        if name not in VARIABLES:
            ends = [variable.removeprefix(PREFIX) for variable in VARIABLES]
            near = difflib.get_close_matches(name.removeprefix(PREFIX), ends, n=1)
            names = ", ".join(VARIABLES)
            hint = f"did you mean {PREFIX}{near[0]}?" if near else f"known are {names}"
            lines.append(f"environment variable {name} is unknown; {hint}")
        elif rule := VARIABLES[name].wrong(environ[name]):
            lines.append(f"environment variable {name} must be {rule}, got {environ[name]!r}")
    return lines


def refuse_mistakes() -> None:
    """Raise ValueError, one line, for the first mistake in the environment.

    Not while Python looks for the module of `python -m sddmm`, which prints all mistakes itself:
    sys.argv[0] is then "-m".
    """
    if getattr(sys, "argv", None) and sys.argv[0] == "-m":
        return
    for line in mistakes():
        raise ValueError(line)


def user_cache_folder() -> Path:
    """The folder of this user's caches, by the XDG base directory specification."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sddmm"


def _can_be_folder(value: str) -> bool:
    path = Path(value)
    return not value.startswith("~") and "\0" not in value and (path.is_dir() or not path.exists())
