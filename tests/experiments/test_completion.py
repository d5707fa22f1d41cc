"""Tab completion works in a real bash, which reads what a person types from a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments import cli
from experiments.bench import completion

_LINE = re.compile(rb"<<(.*?)>>")


class Bash:
    """An interactive bash with the completions of a script, in a folder."""

    def __init__(self, script: Path, folder: Path) -> None:
        self._terminal, other = pty.openpty()
        environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "", "HOME": str(folder)}
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=other, stdout=other, stderr=other, cwd=folder, env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(other)
        self._type(f"bind 'set bell-style none'; stty cols 500; source {script}\n")

    def completed(self, line: str) -> str:
        """The command line after a tab."""
        self._type(f"{line}\t\x01printf '<<%s>>\\n' '\x05'\n")
        seen, deadline = b"", time.monotonic() + 60
        while (found := _LINE.findall(seen)[-1:]) in ([], [b"%s"]):
            assert time.monotonic() < deadline, seen
            if select.select([self._terminal], [], [], 1)[0]:
                seen += os.read(self._terminal, 4096)
        return found[0].decode()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def _type(self, text: str) -> None:
        os.write(self._terminal, text.encode())


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bash]:
    folder = tmp_path_factory.mktemp("completion")
    (folder / "my_matrix.mtx").touch()
    (folder / "graphs_here").mkdir()
    script = folder / "script.sh"
    script.write_text(completion.script("bash", cli.commands().values(), {"docs": ()}))
    shell = Bash(script, folder)
    yield shell
    shell.close()


@pytest.mark.parametrize(
    ("typed", "rest"),
    [
        ("rep", "ort "),
        ("do", "cs "),
        ("run dty", "pe="),
        ("run dtype=fl", "oat"),
        ("run dtype=float16 timing.sl", "owest="),
        ("run +matrix=power_", "law_100k "),
        ("run +mat", "rix="),
        ("run matrix=u36k,fem", "_24k "),
        ("run matrix=my_", "matrix.mtx "),
        ("run methods=ours,torch_c", "sr "),
        ("run methods=[ours,torch_c", "sr "),
        ("run +study=published_100", "00 "),
        ("gemm accumulate=fp1", "6 "),
        ("gemm +shapes=n", "_rows "),
        ("report objective=tr", "aining "),
        ("report formats=tex,par", "quet "),
        ("run +study=folder folder=gra", "phs_here/"),
        ("report --he", "lp "),
    ],
)
def test_bash_completes_commands_keys_groups_and_values(bash: Bash, typed: str, rest: str) -> None:
    line = f".venv/bin/python -m experiments {typed}"
    assert bash.completed(line) == line + rest


def test_bash_leaves_other_modules_of_python_alone(bash: Bash) -> None:
    assert bash.completed("python -m json.tool my_ma") == "python -m json.tool my_matrix.mtx "
