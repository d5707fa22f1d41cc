"""The command line does what a person types, and says what is wrong in one line."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from experiments.bench.commands import refuse_parallel_jobs
from experiments.bench.environment import device_name
from experiments.bench.errors import ExperimentError
from experiments.sddmm import ahead
from experiments.sddmm.methods import METHODS, ours
from tests.conftest import ROOT

NO_CACHE = {"SDDMM_DATASETS_CACHE": "/proc/no"}
QUICK = ["timing.max_samples=3", "timing.seconds=0", "methods=[ours]"]


@pytest.fixture
def process(tmp_path: Path):
    """Run a command as a process of its own in an empty folder."""

    def run(
        *arguments: str, environment: Mapping[str, str] = NO_CACHE, **options: object
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "experiments", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            timeout=300,
            **options,  # type: ignore[call-overload]
        )

    return run


def test_no_command_is_help(process) -> None:
    done = process()
    assert done.returncode == 0
    assert done.stdout.startswith("usage: python -m experiments COMMAND")
    assert "power_law_100k" in done.stdout


@pytest.mark.slow
def test_a_sweep_ends_as_a_process_with_its_exit_code(process) -> None:
    done = process("run", "-m", "matrix=30x40", "k=0,5", *QUICK[:2], "methods=[torch_csr]")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: k must be >= 1, got 0"
    assert "| 30x40  |  60 |" in done.stdout


def test_an_unknown_command_is_told_with_the_valid_ones(call) -> None:
    stderr = call("bogus", code=2)
    valid = "run, warm, report, gemm, ladder, launch, docs, fragments, completion"
    assert stderr == f"error: unknown command 'bogus'; choose from: {valid}\n"


@pytest.mark.slow
def test_a_bare_run_uses_a_small_matrix_and_all_methods(call, tmp_path: Path) -> None:
    out = call("run", "timing.max_samples=3", "timing.seconds=0")
    assert out.count("| 1000x1000 |") == len(METHODS.names())
    assert "isratnisa" in out
    assert f"on {device_name('cpu')}" in out
    assert (tmp_path / "results" / "records.jsonl").is_file()
    assert len(list((tmp_path / "results" / "runs").iterdir())) == 1
    again = call("run", "timing.max_samples=3", "timing.seconds=0")
    assert again.count("| cached  |") == 6
    reported = call("report")
    assert reported.count("| 1000x1000 |") == len(METHODS.names())
    assert (tmp_path / "results" / "report" / "report.html").is_file()
    assert not list(tmp_path.glob("*.log"))


@pytest.mark.parametrize("argument", ["+matrix=77x88", "matrix=77x88"])
def test_any_size_is_a_matrix_with_or_without_the_plus(call, argument: str) -> None:
    assert "| 77x88  | 339 |" in call("run", argument, "k=9", *QUICK)


def test_a_sweep_runs_every_combination_wherever_m_stands(call, tmp_path: Path) -> None:
    out = call("run", "+matrix=30x40,50x20", "k=1,2", "-m", "seed=3", *QUICK)
    assert re.findall(r"\| (\d+x\d+) .*?\| +(\d) \| float32 \| ours", out) == [
        ("30x40", "1"), ("30x40", "2"), ("50x20", "1"), ("50x20", "2")
    ]  # fmt: skip
    assert (tmp_path / "results" / "sweeps").is_dir()


def test_a_study_sweeps_by_itself_and_an_axis_may_be_overridden(call) -> None:
    out = call("run", "+study=smoke", "k=5", *QUICK)
    found = re.findall(r"\| +([\d.]+%) \| +(\d+) \| float32 \| ours", out)
    assert found == [("90%", "5"), ("99%", "5")]


def test_a_users_own_matrices_and_studies_are_found_by_searchpath(call, tmp_path: Path) -> None:
    for group, name, text in (
        ("matrix", "mine", "defaults: [/source@_here_: banded]\nrows: 8\ncols: 8\nbandwidth: 1\n"),
        ("study", "my", "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: "
                        "{matrix: '12x34,mine'}}}\n"),
    ):  # fmt: skip
        (tmp_path / "own" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / group / f"{name}.yaml").write_text(text)
    path = f"hydra.searchpath=[file://{tmp_path / 'own'}]"
    assert "| mine   |  22 |" in call("run", path, "+matrix=mine", *QUICK)
    swept = call("run", path, "+study=my", *QUICK)
    assert "| 12x34  |" in swept
    assert "| mine   |" in swept


def test_a_glob_runs_every_matrix_that_it_names(call) -> None:
    out = call("run", "-m", "matrix=glob([1000x*,u5k*])", "k=1", *QUICK)
    assert "| 1000x1000 |" in out
    assert "| u5k_995 |" in out


def test_a_file_is_a_matrix(call, tmp_path: Path) -> None:
    (tmp_path / "m.mtx").write_text(
        "%%MatrixMarket matrix coordinate pattern symmetric\n4 4 2\n2 1\n3 3\n"
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "m.mtx.gz").write_bytes(gzip.compress((tmp_path / "m.mtx").read_bytes()))
    assert "| m.mtx  |   3 |" in call("run", "+matrix=m.mtx", *QUICK)
    out = call("run", "-m", "matrix=in/m.mtx.gz,m.mtx,30x40", *QUICK)
    assert "| 30x40  |" in out
    assert "| in/m.mtx.gz |   3 |" in out
    assert "| m.mtx  |   3 |" in out
    (tmp_path / "bad.mtx").write_text(
        "%%MatrixMarket matrix coordinate pattern general\n4 4 1\n5 1\n"
    )
    stderr = call("run", "+matrix=bad.mtx", code=1)
    assert stderr == "error: bad.mtx: line 3: a row index in 1..4 expected, got '5'\n"
    assert call("run", "+matrix=no.mtx", code=1) == "error: no.mtx: no such file\n"


def test_a_file_of_a_strange_name_is_measured_and_reported(call, tmp_path: Path) -> None:
    name = "a=b,${k} (\u00e4|'1').mtx"
    (tmp_path / name).write_text("%%MatrixMarket matrix coordinate pattern general\n4 4 1\n2 1\n")
    shown = name.replace("|", "\\|")
    assert f"| {shown} |   1 |" in call("run", f"+matrix={name}", f"records={name}.jsonl", *QUICK)
    reported = call("report", f"records=[{name}.jsonl]", f"output=o {name}", "plots=false")
    assert f"| {shown} |   1 |" in reported
    assert (tmp_path / f"o {name}" / "report.md").is_file()


def test_a_file_is_known_by_its_content_wherever_it_lies(call, tmp_path: Path) -> None:
    text = "%%MatrixMarket matrix coordinate pattern general\n4 4 {0}\n" + "1 1\n2 2\n"
    for folder in ("sub", "."):
        (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / "sub" / "m.mtx").write_text(text.format(2))
    (tmp_path / "m.mtx").write_text(text.format(2))
    assert "| ok " in call("run", "+matrix=m.mtx", *QUICK)
    assert "| sub/m.mtx |   2 |" in (again := call("run", "+matrix=sub/m.mtx", *QUICK))
    assert "| cached |" in again
    (tmp_path / "m.mtx").write_text(text.format(2).replace("2 2\n", "3 3\n"))
    out = call("run", "-m", "+matrix=m.mtx,sub/m.mtx", *QUICK)
    assert "| ok " in out.partition("sub/m.mtx")[0]
    assert "| cached |" in out.partition("sub/m.mtx")[2]
    assert call("report", "plots=false").count("| m.mtx (matrix.digest=") == 2


def test_records_that_cannot_be_kept_are_told_under_the_table(process, tmp_path: Path) -> None:
    """A file limit stands for a full disk: it lets the file be opened and takes no line."""
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "records.jsonl").write_bytes(b"\n" * 999)
    options = ["hydra.output_subdir=null", "hydra/job_logging=disabled"]
    # Another method than ours, whose kernels numba would compile and could not keep.
    quick = [*QUICK[:2], "methods=[torch_csr]"]
    # Python would cut its own bytecode off there and keep it.
    environment = {**NO_CACHE, "PYTHONDONTWRITEBYTECODE": "1"}
    done = process(
        "run", "+matrix=30x40", *quick, *options, environment=environment, preexec_fn=limit
    )
    assert done.returncode == 1
    assert "| 30x40  |  60 |" in done.stdout
    assert done.stderr.splitlines()[-1] == (
        "error: 1 of 1 records were not kept: cannot write to results/records.jsonl: File too large"
    )


def test_launchers_that_run_jobs_at_once_are_refused_on_a_gpu() -> None:
    joblib = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"
    basic = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
    with pytest.raises(ExperimentError, match="falsifies times on a GPU"):
        refuse_parallel_jobs(joblib, "cuda")
    refuse_parallel_jobs(joblib, "cpu")
    refuse_parallel_jobs(basic, "cuda")


def test_hydras_own_questions_are_answered(call, process) -> None:
    assert "k: 7\n" in call("run", "+matrix=30x40", "k=7", "--cfg", "job")
    assert "matrix/30x40" in process("run", "+matrix=30x40", "--info", "defaults").stdout
    assert "published_5000" in call("run", "--help")


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(case: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ours, "prepare", interrupted)
    stderr = call("run", "matrix=30x40", "methods=scipy_rows,ours", code=130)
    assert stderr.splitlines()[-1] == (
        "error: interrupted: 0 records of this run are kept in results/records.jsonl; the same "
        "command goes on from there"
    )


def test_lists_need_no_brackets_and_several_values_are_a_sweep(call) -> None:
    out = call("run", "matrix=30x40,50x20", *QUICK[:2], "methods=ours,torch_csr")
    assert re.findall(r"\| (\d+x\d+) .*? \| (ours|torch_csr) ", out) == [
        ("30x40", "ours"), ("30x40", "torch_csr"), ("50x20", "ours"), ("50x20", "torch_csr")
    ]  # fmt: skip
    assert "ours is the fastest on " in out
    assert "\n4 records in results/records.jsonl, all measured now." in out
    assert "Next: python -m experiments report (" in out


def test_fragments_are_printed_and_unknown_ones_refused(call) -> None:
    assert "10:4" in call("fragments", "m16n16k16")
    assert "mma_m16n8k16_a" in call("fragments")
    assert call("fragments", "m1", code=1).startswith("error: unknown layout 'm1'; choose from")


def test_a_study_of_problems_is_measured_and_reported(call, tmp_path: Path) -> None:
    chosen = ("+study=regret", "only=[tiny_64,tiny_1k]", "part=0/2", "device=cpu", "warm=false")
    out = call("run", *chosen, "methods=[ours,torch_dense]", "kernels=false")
    assert out.count("| tiny_64 | 400 |") == 2
    assert re.search(r"\| tiny_1k \| 50,000 \| +95% +\| +64 \| float16 \| +8 \| ours +\| ok", out)
    call("report", "output=out", "plots=false")
    assert "| tiny_1k |" in (tmp_path / "out" / "report.md").read_text()
    assert call("run", *chosen, "only=[huge]", code=1) == "error: no problem is named huge\n"


def test_matrices_of_a_study_are_generated_ahead(
    call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDDMM_DATASETS_CACHE", str(tmp_path / "cache"))
    call("warm", "+study=regret", "only=[tiny_64,tiny_300]", "device=cpu")
    assert len(list((tmp_path / "cache").glob("uniform-*.npz"))) == 2
    assert not (tmp_path / "results" / "records.jsonl").exists()


@pytest.mark.parametrize("objective", ["spmm", "training", "attention"])
def test_other_objectives_are_measured_and_reported_by_the_same_commands(
    call, tmp_path: Path, objective: str
) -> None:
    out = call("run", f"objective={objective}", "+matrix=30x40", "k=8", *QUICK)
    assert re.search(r"\| 30x40 +\| +60 \| .* \| ours +\| ok", out)
    call("report", f"objective={objective}", "output=out", "plots=false")
    assert "| 30x40 " in (tmp_path / "out" / "report.md").read_text()
    valid = "sddmm, spmm, training, attention, distributed"
    stderr = call("run", "objective=gemm", code=1)
    assert stderr == f"error: objective must be one of {valid}, got gemm\n"


def test_large_matrices_of_another_study_are_generated_by_processes(
    call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "SMALL_NNZ", 0)
    monkeypatch.setenv("SDDMM_DATASETS_CACHE", str(tmp_path / "cache"))
    call("warm", "+study=attention", "only=[molecules]", "device=cpu")
    assert len(list((tmp_path / "cache").glob("small_graphs-*.npz"))) == 1


def test_docs_takes_no_arguments(call) -> None:
    assert call("docs", "now", code=1) == "error: docs takes no arguments, got now\n"
