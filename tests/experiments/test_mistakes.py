"""The command line says in one line what is wrong, and what is valid."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["+mtrix=1"], "unknown config key 'mtrix'; did you mean 'matrix'?"),
        (["mtrix=1"], "unknown config key 'mtrix'; did you mean 'matrix'?"),
        (["+matrix.row=1"], "unknown config key 'matrix.row'; did you mean 'matrix.rows'?"),
        (["matrix.foo=1"], "unknown config key 'matrix.foo'; --cfg job shows the keys"),
        (["timing.foo=1"], "unknown config key 'timing.foo'; choose from: timing.min_samples, "),
        (["timing.secnds=1"], "unknown config key 'timing.secnds'; did you mean 'timing.seconds'?"),
        (["methods=our"], "unknown method 'our'; did you mean 'ours'?"),
        (["matrix=rmat_10k"], "unknown matrix 'rmat_10k'; did you mean 'rmat_100k'?"),
        (["10000x10000"], "'10000x10000' is no setting; did you mean +matrix=10000x10000?"),
        (["peers"], "'peers' is no setting; did you mean +study=peers?"),
        (["k"], "'k' is no setting; settings are KEY=VALUE, such as k=VALUE"),
        (["--k=5"], "unknown option '--k'; settings have no dashes: k=5"),
        (["matrix=nope"], "unknown matrix 'nope'; choose from: 1"),
        (["+study=nope"], "unknown study 'nope'; choose from: attention, attention_smoke, "),
        (["k=abc"], "k must be a whole number, >= 1, got 'abc'"),
        (
            ["sparsity=95%"],
            "sparsity must be a number or null, a fraction in 0 <= sparsity < 1, got",
        ),
        (["force=maybe"], "force must be true or false, got 'maybe'"),
        (["timing=fast"], "timing is no key but has some: timing.min_samples, timing.max_samples"),
        (["matrix.seed=x"], "matrix.seed=x: Value 'x' of type 'str' could not be converted to Int"),
        (["matrix.sparsty=0.5"], "unknown config key 'matrix.sparsty'; did you mean 'matrix.spars"),
        (["k=0"], "k must be >= 1, got 0"),
        (["sparsity=1"], "sparsity must be a fraction in 0 <= sparsity < 1, got 1.0"),
        (["matrix=0x5"], "unknown matrix '0x5'"),
        (["matrix=null"], "matrix must be a size, a file or a YAML of conf/matrix, got nothing"),
        (["dtype=int8"], "dtype must be one of float16, bfloat16, float32, float64, got int8"),
        (["methods=[foo]"], "unknown method 'foo'; choose from: ours, isratnisa, "),
        (["device=tpu"], "device must be one of auto, cpu, cuda, got tpu"),
        (["matrix=9999999x9999999"], "matrix 9999999x9999999 (9999999x9999999, 4999999000000 "),
        (["k=[1"], "no viable alternative at input '[1'"),
        (["seed=18446744073709551616"], "seed must be below 2^63, got 18446744073709551616"),
        (["seed=-1"], "seed must be >= 0, got -1"),
        (["matrix.seed=-1"], "matrix.seed must be >= 0, got -1"),
        (["+matrix=power_law_100k", "matrix.exponent=nan"], "matrix.exponent must be finite, got "),
        (["timing.timeout_s=inf"], "timing.timeout_s must be in 0 < timeout_s <= 1e9, got inf"),
        (["timing.seconds=1e999"], "timing.seconds must be finite, got inf"),
        (["matrix=" + "1" * 5000], "matrix=1111111111111... holds a number of 5000 digits; at "),
        (["matrix=" + "1" * 5000 + "x5"], "matrix=1111111111111... holds a number of 5000 digits"),
        (["matrix=" + "1" * 40 + "x5"], "matrix.rows must be below 2^63, got 1111"),
        (["k=" + "1" * 5000], "k=111111111111111111... holds a number of 5000 digits; at most 299"),
        (["records=/dev/full"], "records must be in a plain file, and /dev/full is a device or a "),
        (["records=/proc/r/r.jsonl"], "cannot write records to /proc/r/r.jsonl: No such file"),
        (["matrix=\udcff.mtx"], "'matrix=\\udcff.mtx' is not valid UTF-8"),
        (["hydra.run.dir=/proc/no"], "/proc/no: No such file or directory"),
        (["+study=folder"], "folder must be a folder of matrix files, got ''"),
        (
            ["+study=folder", "folder=a {b}, c"],
            "folder must be a folder of matrix files, got 'a {b}",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line_with_what_is_valid(
    call, given: list[str], message: str
) -> None:
    stderr = call("run", *given, code=1)
    assert stderr.startswith(f"error: {message}")
    assert stderr.count("\n") == 1


def test_a_mistake_in_an_environment_variable_is_told_in_one_line(
    call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDDMM_COMIT", "1")
    expected = "error: environment variable SDDMM_COMIT is unknown; did you mean SDDMM_COMMIT?\n"
    assert call("run", code=1) == expected


def test_a_matrix_yaml_that_names_no_source_is_told_what_to_add(call, tmp_path: Path) -> None:
    (tmp_path / "own" / "matrix").mkdir(parents=True)
    (tmp_path / "own" / "matrix" / "mine.yaml").write_text("rows: 8\ncols: 8\n")
    path = f"hydra.searchpath=[file://{tmp_path / 'own'}]"
    stderr = call("run", path, "+matrix=mine", code=1)
    assert stderr.startswith(
        "error: matrix does not say how it is made; begin its YAML with `defau"
    )
    assert "[/source@_here_: SOURCE, _self_]`, SOURCE one of uniform, rmat, " in stderr
    assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("report", "no records at results/records.jsonl; measure some with"),
        (
            "ladder",
            "no records at results/gemm.jsonl; measure some with `python -m experiments gemm`",
        ),
        (
            "report objective=spmm",
            "no records at results/spmm.jsonl; measure some with `python -m experiments run "
            "objective=spmm`",
        ),
        ("report records=/dev/zero", "records must be in a plain file, and /dev/zero is a device"),
        ("report records=[.]", "records must be in a plain file, and . is a folder"),
        pytest.param(
            "launch",
            "launch measures calls of GPU kernels, but torch sees no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_the_other_commands_fail_in_one_line_too(call, command: str, message: str) -> None:
    stderr = call(*command.split(), code=1)
    assert stderr.startswith(f"error: {message}")
    assert stderr.count("\n") == 1
