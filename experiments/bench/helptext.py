"""The text of --help: every command, and every key of a command with its type and an example."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from omegaconf import OmegaConf
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import datasets
from experiments.bench import sources
from experiments.bench.arguments import CONF, GROUPS, options_of
from experiments.bench.commands import Command
from experiments.bench.keys import Key, keys_of

_WIDEST = 100
_HYDRA = (
    ("-m", "Run every combination of values; implied by a comma: k=256,512."),
    ("--cfg job", "Print the configuration and end."),
    ("--info defaults", "Print which files of conf/ it comes from and end."),
    ("hydra.run.dir=DIR", "The folder for the log of a run; hydra.sweep.dir of a sweep."),
    ("hydra.searchpath=[file://DIR]", "A folder with groups of your own: DIR/matrix/mine.yaml."),
    ("--hydra-help", "The other options of Hydra."),
)


class Word(Protocol):
    """A command of any kind. help: how it is called, and what it does then, line by line."""

    @property
    def name(self) -> str: ...

    @property
    def help(self) -> tuple[tuple[str, str], ...]: ...


def overview(words: Iterable[Word]) -> str:
    """All commands."""
    blocks: list[Any] = [_usage("COMMAND [KEY=VALUE ...]"), Text()]
    blocks.append(_grid(line for word in words for line in word.help))
    size = f"M is a size (777x888), a file ({', '.join(datasets.SUFFIXES)}) or one of"
    blocks += [Text(), Text(f"{size} {', '.join(options_of('matrix'))}.")]
    blocks += [Text(), Text("python -m experiments COMMAND --help explains every key of it.")]
    return _as_text(blocks)


def of(word: Word) -> str:
    """A command; one that has a configuration with its groups and keys."""
    if isinstance(word, Command):
        return _of_command(word)
    return _as_text([_usage(word.help[0][0]), Text(), _grid(word.help)])


def _of_command(command: Command) -> str:
    blocks: list[Any] = [
        _usage(f"{command.name} [KEY=VALUE ...]"),
        Text(),
        Text(command.about or inspect.getdoc(command.schema)),
    ]
    blocks += [Text(), _grid(command.help)]
    groups = defaults_of(command)
    if groups:
        blocks += [Text("\nGroups: +GROUP=NAME chooses a file of conf/GROUP\n", "bold")]
        blocks.append(_grid((name, _group(name, default)) for name, default in groups.items()))
    blocks += [Text("\nKeys: KEY=VALUE\n", "bold")]
    own = [key for key in keys_of(command.schema) if key.path not in groups]
    blocks.append(_grid((key.path, _entry(key)) for key in own))
    if "matrix" in groups:
        blocks += [Text("\nKeys of a matrix, by the kind of its source\n", "bold"), _grid(_kinds())]
        blocks += [Text(), _grid(_matrix_keys())]
    blocks += [Text("\nOptions of Hydra\n", "bold"), _grid(_HYDRA)]
    return _as_text(blocks)


def defaults_of(command: Command) -> dict[str, str]:
    """The groups of a command's YAML, and the option that each has without being chosen."""
    entries = OmegaConf.to_container(OmegaConf.load(CONF / f"{command.config}.yaml").defaults)
    pairs = [pair for entry in entries if isinstance(entry, dict) for pair in entry.items()]
    return {name: option or "none" for name, option in pairs if not name.startswith("override ")}


def title_of(path: Any) -> str:
    """The first sentence of the comment at the head of a YAML."""
    comments = re.findall(r"^# ([^@].*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return re.split(r"(?<=\.) ", " ".join(comments))[0] if comments else ""


def _group(name: str, default: str) -> Text:
    text, example = GROUPS[name]
    entry = Text(f"{text}\ndefault {default}\n")
    if name == "matrix":
        files = ", ".join(datasets.SUFFIXES)
        entry.append(f"a size like 777x888, a file ({files}), or: {', '.join(options_of(name))}\n")
    else:
        for option in options_of(name):
            entry.append(f"{option}: {title_of(CONF / name / f'{option}.yaml')}\n")
    return entry.append(f"example: {example}")


def _entry(key: Key) -> Text:
    """The lines of a key: what it means; its type, default and valid values; an example."""
    description = key.description
    rule = [description.rule.text] if description.rule else []
    kind = ", ".join(rule if key.values and rule else [key.type_name, *rule])
    default = f"default {key.default_text}" if key.default_text else "required"
    return Text(f"{description.text}\n{kind}; {default}; example: {description.example}")


def _kinds() -> Iterator[tuple[str, str]]:
    for name, source in sources.SOURCES.items():
        names = ", ".join(key.path for key in keys_of(source))
        yield name, f"{inspect.getdoc(source)} Keys: {names}."


def _matrix_keys() -> Iterator[tuple[str, Text]]:
    """Each key of a source once, with the sources that mean the same by it."""
    entries: dict[tuple[str, str], list[str]] = {}
    for name, source in sources.SOURCES.items():
        for key in keys_of(source):
            entries.setdefault((f"matrix.{key.path}", _entry(key).plain), []).append(name)
    for (path, entry), own in sorted(entries.items()):
        of = "all but file" if len(own) == len(sources.SOURCES) - 1 else ", ".join(own)
        yield path, Text(f"{entry}; of {of}")


def _usage(arguments: str) -> Text:
    return Text(f"usage: python -m experiments {arguments}")


def _grid(rows: Iterable[tuple[str, str | Text]]) -> Padding:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for name, text in rows:
        grid.add_row(Text(name, "bold"), text)
    return Padding(grid, (0, 0, 0, 2))


def _as_text(blocks: Iterable[Any]) -> str:
    """The text for a terminal, no wider than one reads with ease; bold where there is one."""
    console = Console(highlight=False)
    console.width = min(console.width, _WIDEST)
    with console.capture() as captured:
        console.print(*blocks, sep="\n")
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
