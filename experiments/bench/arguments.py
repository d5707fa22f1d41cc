"""Command-line arguments in Hydra's grammar.

A person writes file names and sizes as they are. Hydra gives `= $ { ( ,` and letters beyond ASCII a
meaning of their own, and takes a matrix only as an option of a group.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import datasets
from experiments.bench import sources
from experiments.bench.errors import ExperimentError

CONF = Path(__file__).parents[2] / "conf"
GROUPS = ("matrix", "study", "shapes")

_SIZE = re.compile(r"\b[1-9]\d*x[1-9]\d*\b")
# A number of so many digits is a mistake, and Python refuses to convert one of thousands.
_DIGIT_LIMIT = 300
_FILE_OPTION = re.compile(r"file_[0-9a-f]{16}")


def prepare(arguments: Iterable[str], lists: tuple[str, ...] = ()) -> list[str]:
    """The arguments as Hydra takes them; sizes and files among them become matrices.

    lists: the keys whose value is a list of names, written [A,B] or A.
    """
    arguments = list(arguments)
    for argument in arguments:
        _refuse_strange(argument)
    group = re.compile(rf"^\+({'|'.join(GROUPS)})=")
    arguments = [group.sub(r"\1=", argument) for argument in arguments]
    multirun = [argument for argument in arguments if argument in ("-m", "--multirun")]
    rest = [argument for argument in arguments if argument not in multirun]
    for size in _sizes(rest):
        rows, cols = (int(part) for part in size.split("x"))
        sources.register_matrix(size, "uniform", rows=rows, cols=cols)
    return multirun[:1] + [_in_grammar(argument, lists) for argument in rest]


def is_file_option(name: str) -> bool:
    """Whether a matrix option stands for a file that the command line names."""
    return _FILE_OPTION.fullmatch(name) is not None


def quoted(text: str) -> str:
    """The text as Hydra and OmegaConf read it literally."""
    text = re.sub(r"(\\*)'", r"\1\1\'", _literal(text))
    return "'" + re.sub(r"(\\+)$", r"\1\1", text) + "'"


def names_in(text: str) -> list[str]:
    """The names of a list A,B or [A,B].

    A name that holds commas is one where it is quoted, or where a file has that name.
    """
    if text.startswith("[") and text.endswith("]") and not _exists(text):
        text = text[1:-1]
    pieces, names = text.split(","), []
    while pieces:
        length = next(n for n in range(len(pieces), 0, -1) if n == 1 or _is_one(pieces[:n]))
        names.append(_unquoted(",".join(pieces[:length]).strip()))
        del pieces[:length]
    return [name for name in names if name]


def _in_grammar(argument: str, lists: tuple[str, ...]) -> str:
    key, equals, value = argument.partition("=")
    name = key.lstrip("+")
    if not equals:
        return argument
    if name == "matrix":
        return f"matrix={_matrices(value)}"
    if name in lists:
        return f"{key}=[{','.join(quoted(item) for item in names_in(value))}]"
    if name in ("records", "output") and not _is_quoted(value):
        return f"{key}={quoted(value)}"
    return argument


def _matrices(value: str) -> str:
    """The files among the names as options of the group, whose names hold letters and digits."""
    if value in ("", "null"):
        raise ExperimentError("matrix must be a size, a file or a YAML of conf/matrix, got nothing")
    if not any(suffix in value.lower() for suffix in datasets.SUFFIXES):
        return value
    options = []
    for name in names_in(value):
        option = name
        if name.lower().endswith(datasets.SUFFIXES):
            option = f"file_{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
            sources.register_matrix(option, "file", path=_literal(name))
        options.append(option)
    return ",".join(options)


def _sizes(arguments: list[str]) -> set[str]:
    """Every size that the arguments name, in themselves or through the study they choose."""
    folders = [CONF]
    texts = ["1000x1000"]  # the default of config.yaml
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "hydra.searchpath":
            folders += [Path(path) for path in re.findall(r"file://([^,\]\"']+)", value)]
        if key in ("matrix", "study"):
            texts.append(value)
    for study in re.findall(r"^study=(\w+)$", "\n".join(arguments), re.MULTILINE):
        for path in (folder / "study" / f"{study}.yaml" for folder in folders):
            if path.is_file():
                texts.append(path.read_text(encoding="utf-8"))
    return set(_SIZE.findall("\n".join(texts)))


def _refuse_strange(argument: str) -> None:
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise ExperimentError(f"{argument!a} is not valid UTF-8") from None
    if digits := re.search(rf"\d{{{_DIGIT_LIMIT},}}", argument):
        raise ExperimentError(
            f"{argument[:20]}... holds a number of {len(digits.group())} digits; "
            f"at most {_DIGIT_LIMIT - 1} can be"
        )


def _literal(text: str) -> str:
    """OmegaConf looks up what stands in ${...}, unless a backslash is before it."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def _is_one(pieces: list[str]) -> bool:
    text = ",".join(pieces).strip()
    return _is_quoted(text) or _exists(text)


def _is_quoted(text: str) -> bool:
    return len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" and text[0] not in text[1:-1]


def _unquoted(text: str) -> str:
    return text[1:-1] if _is_quoted(text) else text


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # a name that no file can have
        return False
