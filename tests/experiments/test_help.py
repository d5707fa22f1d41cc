"""Every key of every command is explained, and every example that stands there is valid."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import shlex
import subprocess
import sys

import pytest
from hydra import compose, initialize_config_dir

from experiments import cli
from experiments.bench import arguments, helptext, sources
from experiments.bench.keys import Key, keys_of
from tests.conftest import ROOT

COMMANDS = cli.commands()
MATRIX_KEYS = {
    (name, key.path): key for name, kind in sources.SOURCES.items() for key in keys_of(kind)
}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_key_with_its_type_and_default(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    cli.main([name, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    groups = helptext.defaults_of(COMMANDS[name])
    own = [key for key in keys_of(COMMANDS[name].schema) if key.path not in groups]
    assert own
    for key in own:
        assert len(key.description.text.split()) >= 4, key.path
        assert f"{key.path} {key.description.text}" in text
        assert f"default {key.default_text}; example: {key.description.example}" in text
        assert all(value in text for value in key.values)
    for group in groups:
        assert all(option in text for option in arguments.options_of(group))
    for (_, path), key in MATRIX_KEYS.items():
        assert ("matrix" in groups) == (f"matrix.{path} {key.description.text}" in text)


def test_the_docstring_of_a_configuration_is_what_help_begins_with() -> None:
    for command in COMMANDS.values():
        about = command.about or inspect.getdoc(command.schema) or ""
        assert about in " ".join(helptext.of(command).split())
        assert not about.startswith(command.schema.__name__)  # which dataclasses write themselves


def test_a_key_without_an_explanation_has_no_help() -> None:
    schema = dataclasses.make_dataclass("Schema", [("k", int, 1)])
    with pytest.raises(KeyError):
        keys_of(schema)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_valid_and_sets_its_key(name: str) -> None:
    """Examples that choose the same study are given together, which is quick."""
    command = COMMANDS[name]
    together: dict[str, list[Key]] = {}
    for key in keys_of(command.schema):
        study = re.search(r"\+study=\w+", key.description.example)
        together.setdefault(study[0] if study else "", []).append(key)
    cli.register()
    with initialize_config_dir(str(arguments.CONF), version_base="1.3"):
        for keys in together.values():
            words = dict.fromkeys(w for key in keys for w in shlex.split(key.description.example))
            given = arguments.prepare(words, command.lists)
            settings = cli.typed(compose(command.config, given))
            for key in keys:
                value = functools.reduce(getattr, key.path.split("."), settings)
                assert value != key.default, key.path


def test_every_example_of_a_matrix_is_valid() -> None:
    for (source, name), key in MATRIX_KEYS.items():
        path, _, text = key.description.example.partition("=")
        assert path == f"matrix.{name}"
        needed = {k.path: 7 for k in keys_of(sources.SOURCES[source]) if not k.default_text}
        read = {str: str, float: float, bool: lambda word: word == "true"}.get(key.kind, int)
        value = read(text)
        assert value != key.default
        sources.SOURCES[source](**{**needed, name: value})


def test_a_reader_that_has_enough_ends_it_without_a_word() -> None:
    """As `--help | head` does."""
    command = [sys.executable, "-m", "experiments", "--help"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 141)
