"""The matrix files of a folder as cases, for the study `folder`.

Every file below the folder whose kind `datasets` reads is a case under its path. What cannot be
read and what the limits leave out is printed with the reason; files of other kinds are passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import datasets
from experiments.bench.errors import ExperimentError
from experiments.bench.sources import File
from experiments.sddmm.config import Config


def cases_of(config: Config) -> list[tuple[str, Config]]:
    """The label and the configuration of each file. Prints why files are left out.

    ExperimentError if there is no such folder, or nothing in it to measure.
    """
    folder = Path(config.folder).expanduser()
    if not config.folder or not folder.is_dir():
        raise ExperimentError(f"folder must be a folder of matrix files, got {config.folder!r}")
    found = list(_files(folder, config.glob))
    cases = []
    for label, path in found:
        source = File(path=str(path))
        reason = _reason_to_leave_out(source, config)
        if reason is None:
            cases.append((label, replace(config, matrix=source, folder="")))
        else:
            print(f"left out: {reason}")
    if not cases:
        kinds = ", ".join(datasets.SUFFIXES)
        which = f"none of {len(found)} files can be measured" if found else f"no file of {kinds}"
        raise ExperimentError(f"folder {folder} (glob={config.glob!r}): {which}")
    return cases


def _files(folder: Path, glob: str) -> Iterator[tuple[str, Path]]:
    """The path below the folder and the path of each matrix file, in the order of their names.

    glob: a pattern that the path below the folder, or the name alone, must match.
    """
    for parent, folders, names in os.walk(folder):  # which follows no links to folders
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            label = path.relative_to(folder).as_posix()
            is_chosen = fnmatchcase(label, glob) or fnmatchcase(name, glob)
            if is_chosen and name.lower().endswith(datasets.SUFFIXES):
                yield label, path


def _reason_to_leave_out(source: File, config: Config) -> str | None:
    """None if the file is measured. Its header alone is read."""
    try:
        nnz = source.size().nnz or 0
    except datasets.FileError as error:
        return str(error)
    if nnz < config.min_nnz:
        return f"{source.path}: {nnz} nonzeros, min_nnz is {config.min_nnz}"
    if config.max_nnz is not None and nnz > config.max_nnz:
        return f"{source.path}: {nnz} nonzeros, max_nnz is {config.max_nnz}"
    return None
