"""What the tests of the laboratory share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore

from experiments import cli
from experiments.bench import timing


@pytest.fixture(autouse=True)
def _tables_of_any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest's workers have COLUMNS in their environment, to which tables would be cut."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a command in this process, in an empty folder; its stdout, or stderr if it fails."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(timing, "WARM_UP_MS", 0.0)
    # Sizes and files of one test are no options of the next.
    options = ConfigStore.instance().repo
    monkeypatch.setitem(options, "matrix", dict(options.get("matrix", {})))

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
        exit_code = 0
        try:
            cli.main(list(arguments))
        except SystemExit as stopped:
            exit_code = stopped.code
        output = capsys.readouterr()
        assert exit_code == code, output.err
        return output.out if code == 0 else output.err

    return run
