"""Command-line arguments in Hydra's grammar.

A person writes file names, sizes and lists as they are. Hydra gives `= $ { ( ,` and letters beyond
ASCII a meaning of their own, takes a list in brackets only, and a matrix only as an option of a
group. Several values of a key that is no list are a sweep, with -m as without it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

import datasets
from experiments.bench import sources
from experiments.bench.errors import ExperimentError

CONF = Path(__file__).parents[2] / "conf"
# The groups that a command may have: what a file of each is, and an example.
GROUPS = {
    "matrix": ("The sparse matrix.", "+matrix=10000x10000"),
    "study": ("Runs that belong together.", "+study=smoke"),
    "shapes": ("Shapes of a matrix product that belong together.", "+shapes=hgemm"),
    "distributed": ("How several GPUs or processes divide the matrix.", "+distributed=ring"),
}

_SIZE = re.compile(r"\b[1-9]\d*x[1-9]\d*\b")
# A number of so many digits is a mistake, and Python refuses to convert one of thousands.
_DIGIT_LIMIT = 300
_FILE_OPTION = re.compile(r"file_[0-9a-f]{16}")


# The options that Hydra has, and those of them that take a value as an argument of its own.
_OPTIONS_WITH_VALUE = (
    *("-c", "--cfg", "-p", "--package", "-cp", "--config-path", "-cn", "--config-name"),
    *("-cd", "--config-dir", "-i", "--info", "--experimental-rerun"),
)
_OPTIONS = (
    *("-m", "--multirun", "-r", "--run", "--hydra-help", "--version", "--resolve"),
    *("-sc", "--shell-completion", *_OPTIONS_WITH_VALUE),
)
_LISTS = re.compile(r"\[[^\[\]]*\](,\[[^\[\]]*\])+")


def prepare(arguments: Iterable[str], lists: tuple[str, ...] = ()) -> list[str]:
    """The arguments as Hydra takes them; sizes and files among them become matrices.

    lists: the keys whose value is a list of names, written [A,B], A,B or A.
    """
    arguments = list(arguments)
    for argument in arguments:
        _refuse_strange(argument)
    _refuse_what_is_no_setting(arguments)
    group = re.compile(rf"^\+({'|'.join(GROUPS)})=")
    arguments = [group.sub(r"\1=", argument) for argument in arguments]
    multirun = [argument for argument in arguments if argument in ("-m", "--multirun")]
    rest = [argument for argument in arguments if argument not in multirun]
    for size in _sizes(rest):
        rows, cols = (int(part) for part in size.split("x"))
        sources.register_matrix(size, "uniform", rows=rows, cols=cols)
    rest = [_in_grammar(argument, lists) for argument in rest]
    if not multirun and _is_sweep(rest):
        multirun = ["-m"]
    return multirun[:1] + rest


def _refuse_what_is_no_setting(arguments: list[str]) -> None:
    """Hydra's parser answers with a page of usage, or with a place in its grammar."""
    before = ""
    for argument in arguments:
        if argument.startswith("-"):
            name, _, value = argument.partition("=")
            if name not in _OPTIONS:
                key = name.lstrip("-")
                raise ExperimentError(
                    f"unknown option {name!r}; settings have no dashes: {key}={value or 'VALUE'}"
                )
        elif "=" not in argument and argument[:1] != "~" and before not in _OPTIONS_WITH_VALUE:
            raise ExperimentError(f"{argument!r} is no setting; {_as_setting(argument)}")
        before = argument


def _as_setting(text: str) -> str:
    """What a person may have meant by a value without its key."""
    is_matrix = _SIZE.fullmatch(text) or text.lower().endswith(datasets.SUFFIXES)
    for group in GROUPS:
        if (is_matrix and group == "matrix") or text in options_of(group):
            return f"did you mean +{group}={text}?"
    return f"settings are KEY=VALUE, such as {text}=VALUE"


def options_of(group: str) -> list[str]:
    """The YAML files of a group."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def _is_sweep(arguments: list[str]) -> bool:
    """Whether a key that is no list has several values, and Hydra is asked to run."""
    settings = [argument for argument in arguments if not argument.startswith("-")]
    if any(argument in _OPTIONS for argument in arguments):
        return False
    try:
        overrides = OverridesParser.create().parse_overrides(settings)
    except HydraException:  # which Hydra tells
        return False
    return any(o.is_sweep_override() and not o.key_or_group.startswith("hydra") for o in overrides)


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
    if name in lists and not _LISTS.fullmatch(value):
        return f"{key}=[{','.join(quoted(item) for item in names_in(value))}]"
    if name in ("records", "output", "folder", "glob") and not _is_quoted(value):
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
