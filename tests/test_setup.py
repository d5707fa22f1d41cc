"""The set-up of `make`: which Python it takes, what it says, and that it can be tried again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

OLD = "#!/bin/sh\necho 3.9.18\nexit 1\n"
WITHOUT_VENV = '#!/bin/sh\n[ "$1" = -c ] && echo 3.12.1 && exit 0\nmkdir -p "$3"\nexit 1\n'
# Makes an environment whose Python answers, as every whole one does.
WHOLE = """#!/bin/sh
[ "$1" = -c ] && echo 3.12.1 && exit 0
mkdir -p "$3/bin" && printf '#!/bin/sh\\nexit 0\\n' > "$3/bin/python" && chmod +x "$3/bin/python"
touch "$3/pyvenv.cfg"
"""


def new_venv(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    """The set-up's script, with a Python that is this shell script."""
    fake = folder / "python-of-the-test"
    fake.write_text(python)
    fake.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(fake)}
    command = [ROOT / ".ci" / "new_venv", folder / "venv"]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("python", "message"),
    [
        (OLD, "Python 3.10 or newer is needed, and .*python-of-the-test is 3.9.18; name another"),
        (WITHOUT_VENV, r"\(Python 3.12.1\) cannot make a virtual environment; it lacks the module"),
    ],
)
def test_a_python_that_will_not_do_is_named_and_leaves_nothing_behind(
    tmp_path: Path, python: str, message: str
) -> None:
    for _ in range(2):  # the second time as the first
        done = new_venv(tmp_path, python)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert re.search(message, line)
        assert not (tmp_path / "venv").exists()
    assert new_venv(tmp_path, WHOLE).returncode == 0


def test_a_half_made_environment_is_made_anew_and_a_whole_one_is_kept(tmp_path: Path) -> None:
    half = tmp_path / "venv"
    half.mkdir()
    (half / "pyvenv.cfg").touch()
    (half / "left-behind").touch()
    assert new_venv(tmp_path, WHOLE).returncode == 0
    assert not (half / "left-behind").exists()
    (half / "installed-since").touch()
    assert new_venv(tmp_path, OLD).returncode == 0
    assert (half / "installed-since").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_says_which_python_is_needed(tmp_path: Path) -> None:
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "old").write_text(OLD)
    (tmp_path / "old").chmod(0o755)
    done = subprocess.run(
        ["make", "run", "PYTHON=./old"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "Python 3.10 or newer is needed, and ./old is 3.9.18" in done.stderr


def lower_bounds(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / ".ci").mkdir()
    script = shutil.copy(ROOT / ".ci" / "lower_bounds.py", folder / ".ci")
    return subprocess.run([sys.executable, script], capture_output=True, text=True)


def test_make_test_minimum_pins_every_requirement_to_its_lower_bound(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    pins = dict(line.split("==") for line in lower_bounds(tmp_path).stdout.splitlines())
    text = (ROOT / "pyproject.toml").read_text()
    for name in ("numpy", "torch", "numba", "hydra-core", "matplotlib", "pytest"):
        assert f'"{name}>={pins[name]}' in text
    assert f'"cuda-core[cu12]>={pins["cuda-core"]}"' in text


def test_a_requirement_without_a_lower_bound_is_refused(tmp_path: Path) -> None:
    text = (ROOT / "pyproject.toml").read_text().replace('"scipy>=1.12"', '"scipy"')
    (tmp_path / "pyproject.toml").write_text(text)
    done = lower_bounds(tmp_path)
    assert done.returncode == 1
    assert "'scipy' has no lower bound" in done.stderr
