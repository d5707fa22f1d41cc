"""The command line: `python -m experiments COMMAND [key=value ...]`.

A thin layer before Hydra. It takes the command word, reads `+matrix=x` as `matrix=x` (the group is
in the defaults list, which Hydra would refuse), makes plain sizes like 777x888 and matrix files
options of that group without a YAML, quotes file names, moves -m to the front, and turns what goes
wrong into one line and an exit code.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.bench import config as schema
from experiments.bench.arguments import CONF, is_file_option, prepare
from experiments.bench.errors import ExperimentError

_HELP = """\
usage: python -m experiments COMMAND [key=value ...]

  run [+matrix=M] [k=K] [sparsity=S] ...   measure every method on a matrix: verify, time, record
  run +study=NAME                          a sweep: published_5000, published_10000, ...
  run -m matrix=A,B k=256,512              a sweep of your own
  report [output=DIR] [records=[FILE,...]] merge records into tables and plots
  report compare=[A,B]                     two commits side by side, case by case
  gemm [shape=MxNxK] [dtype=D] ...         every GEMM variant against cuBLAS at one shape
  gemm +shapes=NAME                        a sweep: hgemm, sgemm, n_rows
  ladder [output=DIR] [records=[FILE,...]] merge records of gemm into tables and a plot
  launch [output=DIR]                      what a launch costs the host
  docs                                     the pages' tables and pictures anew from the records
  fragments [LAYOUT]                       which lane holds which element of a tensor-core fragment

  M is a size (10000x10000), a file (.mtx, .mtx.gz, .smtx, .npz), or a YAML of conf/matrix:
    {matrices}
  run --help, run --cfg job and run --info defaults are Hydra's."""


def main(argv: list[str] | None = None) -> None:
    """Run a command; exits with 0, 1 (what was asked failed) or 2 (an unknown command)."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        matrices = ", ".join(sorted(path.stem for path in (CONF / "matrix").glob("*.yaml")))
        print(_HELP.format(matrices=matrices))
        return
    command, *arguments = argv
    commands = {
        "run": _run,
        "report": _report,
        "gemm": _gemm,
        "ladder": _ladder,
        "launch": _launch,
        "docs": _docs,
        "fragments": _fragments,
    }
    if command not in commands:
        _stop(f"unknown command {command!r}; choose from: {', '.join(commands)}", code=2)
    # torch tells once per process that its CSR tensors are in beta; every run would show it.
    warnings.filterwarnings("ignore", message="Sparse (CSR tensor|invariant)")
    for stream in (sys.stdout, sys.stderr):  # names may hold letters that a terminal has not
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    commands[command](arguments)


def _run(arguments: list[str]) -> None:
    _hydra("config", _run_job, arguments)


def _report(arguments: list[str]) -> None:
    _hydra("report", _report_job, arguments, lists=("records", "compare"))


def _gemm(arguments: list[str]) -> None:
    _hydra("gemm", _gemm_job, arguments)


def _ladder(arguments: list[str]) -> None:
    _hydra("ladder", _ladder_job, arguments, lists=("records",))


def _launch(arguments: list[str]) -> None:
    _hydra("launch", _launch_job, arguments)


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


def _run_job(config: DictConfig) -> None:
    from experiments.bench.run import run
    from experiments.sddmm.case import device_of

    chosen = HydraConfig.get()
    with _one_line_errors():
        settings = typed(config)
        refuse_parallel_jobs(chosen.launcher._target_, device_of(settings))
        name = chosen.runtime.choices["matrix"]
        run(settings.matrix.path if is_file_option(name) else name, settings)


def _gemm_job(config: DictConfig) -> None:
    from experiments.gemm.run import run

    with _one_line_errors():
        settings = typed(config)
        refuse_parallel_jobs(HydraConfig.get().launcher._target_, "cuda")
        run(settings)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """A job's error ends the program; in a sweep the other jobs go on and Hydra tells of it."""
    try:
        yield
    except (ExperimentError, OmegaConfBaseException, OSError) as error:
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            raise
        _stop(_one_line(error))


def refuse_parallel_jobs(launcher: str, device: str) -> None:
    """Jobs that share a GPU falsify each other's times."""
    if device.startswith("cuda") and not launcher.endswith(".BasicLauncher"):
        raise ExperimentError(
            f"launcher {launcher} runs jobs at once, which falsifies times on a GPU; "
            f"choose hydra/launcher=basic"
        )


def _report_job(config: DictConfig) -> None:
    from experiments.bench.report import report

    with _one_line_errors():
        report(typed(config))


def _ladder_job(config: DictConfig) -> None:
    from experiments.gemm.report import report

    with _one_line_errors():
        report(typed(config))


def _launch_job(config: DictConfig) -> None:
    from experiments.host_overhead.run import run

    with _one_line_errors():
        run(typed(config))


def typed(config: DictConfig) -> Any:
    """The config as its dataclass: unknown keys are refused, ranges checked."""
    _refuse_unknown_keys(config, "")
    try:
        settings = OmegaConf.to_object(config)
        schema.refuse_absurd(settings)
    except ValueError as error:
        raise ExperimentError(str(error)) from None
    if isinstance(settings, schema.Config) and not isinstance(settings.matrix, schema.Source):
        raise ExperimentError(
            "matrix does not say how it is made; begin its YAML with `defaults: "
            f"[/source@_here_: SOURCE, _self_]`, SOURCE one of {', '.join(schema.SOURCES)}"
        )
    return settings


def _refuse_unknown_keys(node: DictConfig, prefix: str) -> None:
    """Hydra adds `+key=value` to the composed config, known or not."""
    kind = OmegaConf.get_type(node)
    known = [f.name for f in fields(kind)] if is_dataclass(kind) else []
    for key in node:
        if known and key not in known:
            raise ExperimentError(_unknown_key(str(key), known, prefix))
        if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
            _refuse_unknown_keys(node[key], f"{prefix}{key}.")


def _unknown_key(key: str, known: list[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {prefix + near[0]!r}?" if near else f"choose from: {', '.join(known)}"
    return f"unknown config key {prefix + key!r}; {hint}"


def _hydra(
    config_name: str,
    job: Callable[[DictConfig], None],
    arguments: list[str],
    lists: tuple[str, ...] = (),
) -> None:
    """hydra.main, with its errors told in one line (HYDRA_FULL_ERROR=1 shows everything).

    lists: the keys whose value is a list of names.
    """
    schema.register()
    try:
        arguments = prepare(arguments, lists)
    except ExperimentError as error:
        _stop(str(error))
    known = [f.name for f in fields(schema.CONFIGS[config_name])]
    full = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let exceptions come here
    sys.argv = ["experiments", *arguments]
    decorate = hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)
    try:
        decorate(job)()
    except (CompactHydraException, OmegaConfBaseException, OSError) as error:
        if full:
            raise
        _stop(_one_line(error, known))
    except KeyboardInterrupt:
        _stop("interrupted", code=130)


def _one_line(error: Exception, known: Sequence[str] = ()) -> str:
    """Hydra's messages run over several lines; their sense, and what is valid, in one.

    known: the keys of the config.
    """
    text = str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, option = error.missing_cfg_file.rpartition("/")
        sizes = ", or any size like 777x888" if group == "matrix" else ""
        return f"unknown {group} {option!r}; choose from: {', '.join(error.options)}{sizes}"
    if isinstance(error, OSError) and not isinstance(error, CompactHydraException):
        return ": ".join(str(part) for part in (error.filename, error.strerror or text) if part)
    absent = re.search(r"Could not override '([^']+)'", text)
    if absent:
        return _unknown_key(absent.group(1), list(known))
    if error.__cause__ is not None and text.startswith("Error merging override "):
        override = text.removeprefix("Error merging override ")
        return f"{override}: {str(error.__cause__).splitlines()[0]}"
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith(("full_key", "object_type"))]
    return "; ".join(told)


def _stop(message: str, code: int = 1) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
