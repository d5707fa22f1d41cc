"""The command line: `python -m experiments COMMAND [key=value ...]`.

A thin layer before Hydra. It takes the command word, reads `+matrix=x` as `matrix=x` (the group is
in the defaults list, which Hydra would refuse), makes plain sizes like 777x888 and matrix files
options of that group without a YAML, quotes file names, moves -m to the front, and turns what goes
wrong into one line and an exit code.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_type_hints

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import CompactHydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.bench import helptext, sources, terminal
from experiments.bench.arguments import CONF, prepare
from experiments.bench.commands import Command, Job
from experiments.bench.errors import ExperimentError, unknown
from experiments.bench.keys import keys_of, refuse_absurd
from experiments.bench.log import Log

# What can be measured: folders beside this file, each with its commands.
OBJECTIVES = ("sddmm", "gemm", "host_overhead")

_HELP = ("-h", "--help", "help")


@dataclass(frozen=True)
class Tool:
    """A word of the command line without configuration. call: gets the arguments."""

    name: str
    usage: str
    about: str
    call: Callable[[list[str]], None]

    @property
    def help(self) -> tuple[tuple[str, str], ...]:
        return ((self.usage, self.about),)


def commands() -> dict[str, Command]:
    """The commands of every objective, by their word."""
    modules = (importlib.import_module(f"experiments.{name}.commands") for name in OBJECTIVES)
    return {command.name: command for module in modules for command in module.COMMANDS}


def tools() -> dict[str, Tool]:
    """The commands that have no configuration, by their word."""
    own = (
        Tool("docs", "docs", "the pages' tables and pictures anew from the records", _docs),
        Tool(
            "fragments",
            "fragments LAYOUT",
            "which lane holds which element of a tensor-core fragment, such as m16n16k16; no "
            "LAYOUT: the names of all",
            _fragments,
        ),
        Tool(
            "completion",
            "completion SHELL",
            'tab completion: eval "$(python -m experiments completion bash)", or zsh; '
            "python -m experiments completion fish | source",
            _completion,
        ),
    )
    return {tool.name: tool for tool in own}


def main(argv: list[str] | None = None) -> None:
    """Run a command; exits with 0, 1 (the command failed), 2 (an unknown command) or 130."""
    argv = sys.argv[1:] if argv is None else argv
    words: dict[str, Command | Tool] = {**commands(), **tools()}
    if not argv or argv[0] in _HELP:
        print(helptext.overview(words.values()))
        return
    word, *arguments = argv
    if word not in words:
        _stop(unknown("command", word, words), code=2)
    command = words[word]
    if any(argument in _HELP for argument in arguments):
        print(helptext.of(command))
        return
    # torch warns once per process that its CSR tensors are in beta; every run would show it.
    warnings.filterwarnings("ignore", message="Sparse (CSR tensor|invariant)")
    for stream in (sys.stdout, sys.stderr):  # names may hold letters that a terminal has not
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(command, Tool):
        command.call(arguments)
    else:
        _run_with_hydra(command, arguments)


def _docs(arguments: list[str]) -> None:
    from experiments import pages

    if arguments:
        _stop(f"docs takes no arguments, got {' '.join(arguments)}")
    try:
        pages.write_all()
    except (ExperimentError, OSError) as error:
        _stop(str(error))


def _fragments(arguments: list[str]) -> None:
    from gemm_core import fragments

    if not arguments:
        print("layouts:", ", ".join(fragments.LAYOUTS))
    for name in arguments:
        try:
            print(fragments.as_table(fragments.layout(name)))
        except ValueError as error:
            _stop(str(error))


def _completion(arguments: list[str]) -> None:
    from experiments.bench import completion

    shell = " ".join(arguments)
    if shell not in completion.SHELLS:
        _stop(f"completion takes a shell, {', '.join(completion.SHELLS)}, got {shell!r}")
    values = {**dict.fromkeys(tools(), ()), "completion": tuple(completion.SHELLS)}
    print(completion.script(shell, commands().values(), values))


def typed(config: DictConfig) -> Any:
    """The config as its dataclass: unknown keys are refused, ranges checked."""
    _refuse_unknown_keys(config, "")
    try:
        settings = OmegaConf.to_object(config)
        refuse_absurd(settings)
    except ValueError as error:
        raise ExperimentError(str(error)) from None
    if hasattr(settings, "matrix") and not isinstance(settings.matrix, sources.Source):
        raise ExperimentError(
            "matrix does not say how it is made; begin its YAML with `defaults: "
            f"[/source@_here_: SOURCE, _self_]`, SOURCE one of {', '.join(sources.SOURCES)}"
        )
    return settings


def _refuse_unknown_keys(node: DictConfig, prefix: str) -> None:
    """Hydra adds `+key=value` to the composed config, whether a dataclass has the key or not."""
    kind = OmegaConf.get_type(node)
    valid = [f.name for f in fields(kind)] if is_dataclass(kind) else []
    for key in node:
        if valid and key not in valid:
            raise ExperimentError(
                unknown("config key", f"{prefix}{key}", [prefix + name for name in valid])
            )
        if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
            _refuse_unknown_keys(node[key], f"{prefix}{key}.")


def _absent_key(path: str, schema: Any) -> str:
    """The error for a key, with the keys above it, that a config of this dataclass has not."""
    prefix = ""
    while is_dataclass(schema):
        valid = [f.name for f in fields(schema)]
        key, _, path = path.partition(".")
        if key not in valid or not path:
            return unknown("config key", key, valid, prefix=prefix)
        schema, prefix = get_type_hints(schema)[key], f"{prefix}{key}."
    # What kind of source the matrix has is not known here, so no key of another is told as valid.
    names = {key.path for source in sources.SOURCES.values() for key in keys_of(source)} - {path}
    near = difflib.get_close_matches(path, names, n=1)
    hint = f"did you mean {prefix + near[0]!r}?" if near else "--cfg job shows the keys there are"
    return f"unknown config key {prefix + path!r}; {hint}"


def _wrong_type(override: str, reason: str, schema: Any) -> str:
    """The error for a value that its key cannot hold. reason: OmegaConf's words."""
    path, _, value = override.lstrip("+").partition("=")
    keys = {key.path: key for key in keys_of(schema)} if is_dataclass(schema) else {}
    if path in keys:
        kind, rule = keys[path].type_name, keys[path].description.rule
        article = "a " if kind.startswith(("whole", "number")) else ""
        limits = f", {rule.text}" if rule else ""
        return f"{path} must be {article}{kind}{limits}, got {value!r}"
    below = [name for name in keys if name.startswith(f"{path}.")]
    if below:
        return f"{path} is no key but has some: {', '.join(below)}"
    return f"{override}: {reason}"


@functools.cache
def register() -> None:
    """Register the types of all configurations with Hydra, once; call before composing."""
    sources.register()
    for command in commands().values():
        command.register()


def _run_with_hydra(command: Command, arguments: list[str]) -> None:
    """hydra.main, with its errors in one line (HYDRA_FULL_ERROR=1 shows everything)."""
    register()
    try:
        arguments = prepare(arguments, command.lists)
    except ExperimentError as error:
        _stop(str(error))

    log, failures = Log(), list[str]()

    def work(config: DictConfig) -> None:
        _refuse_wrong_variables()
        hydra_config = HydraConfig.get()
        choices, count = dict(hydra_config.runtime.choices), _job_count(hydra_config, arguments)
        try:
            command(typed(config), Job(hydra_config.launcher._target_, choices, log, count))
        except (ExperimentError, OmegaConfBaseException, OSError) as error:
            if not hydra_config.launcher._target_.endswith(".BasicLauncher"):
                raise  # from another process
            failures.append(_one_line(error))

    full = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let exceptions come here
    sys.argv = ["experiments", *arguments]
    decorate = hydra.main(version_base="1.3", config_path=str(CONF), config_name=command.config)
    try:
        decorate(work)()
    except (CompactHydraException, OmegaConfBaseException, OSError) as error:
        if full:
            raise
        failures.append(_one_line(error, command.schema))
    except KeyboardInterrupt:
        _stop(log.interruption(), code=130)
    for words in log.last_words():
        terminal.show(words)
    if failures:
        count = f"{len(failures)} jobs failed: " if len(failures) > 1 else ""
        _stop(count + "; ".join(dict.fromkeys(failures)))


def _job_count(hydra_config: Any, arguments: list[str]) -> int | None:
    """How many jobs Hydra's own sweeper makes of these arguments; None for another sweeper."""
    if hydra_config.mode != RunMode.MULTIRUN:
        return 1
    if not hydra_config.sweeper._target_.endswith(".BasicSweeper"):
        return None
    settings = [a for a in arguments if not a.startswith(("-", "hydra", "+hydra"))]
    params = [f"{key}={value}" for key, value in (hydra_config.sweeper.params or {}).items()]
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    overrides = parser.parse_overrides([*params, *settings])
    return len(BasicSweeper.split_arguments(overrides, None)[0])


def _refuse_wrong_variables() -> None:
    """End with one line for a mistake in the environment; importing the package finds it too."""
    try:
        importlib.import_module("gemm_core.runtime.variables").refuse_mistakes()
    except ValueError as error:
        _stop(str(error))


def _one_line(error: Exception, schema: type | None = None) -> str:
    """Hydra's messages run over several lines; this is their sense, and what is valid, in one.

    schema: the dataclass of the config.
    """
    text = str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, option = error.missing_cfg_file.rpartition("/")
        sizes = ", or any size like 777x888" if group == "matrix" else ""
        return unknown(group, option, error.options, more=sizes)
    if isinstance(error, OSError) and not isinstance(error, CompactHydraException):
        return ": ".join(str(part) for part in (error.filename, error.strerror or text) if part)
    absent = re.search(r"Could not override '([^']+)'", text)
    if absent:
        return _absent_key(absent.group(1), schema)
    if error.__cause__ is not None and text.startswith("Error merging override "):
        override = text.removeprefix("Error merging override ")
        return _wrong_type(override, str(error.__cause__).splitlines()[0], schema)
    lines = [line.strip() for line in text.splitlines()]
    return "; ".join(
        line for line in lines if line and not line.startswith(("full_key", "object_type"))
    )


def _stop(message: str, code: int = 1) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
