"""No record is lost: not by killed runs, full disks, other runs, or lines that are no records."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from experiments.bench import store as store_module
from experiments.bench.errors import ExperimentError, RecordsLost, RowsFailed
from experiments.bench.store import Keeper, Store
from experiments.sddmm.record import Record
from tests.conftest import ROOT
from tests.experiments.records import record


@pytest.fixture
def store(tmp_path: Path) -> Store[Record]:
    return Store(tmp_path / "deep" / "records.jsonl", Record)


FIRST, SECOND = record("ours", 1.0), record("torch_csr", 2.0)


def line_of(**changes: object) -> str:
    return json.dumps({**asdict(FIRST), **changes}) + "\n"


def test_a_store_gives_back_what_it_was_given_the_last_of_equal_keys(store: Store[Record]) -> None:
    assert store.load() == {}
    newer = replace(FIRST, samples_ms=[9.0])
    for r in (FIRST, SECOND, newer):
        store.append(r)
    assert store.load() == {FIRST.key: newer, SECOND.key: SECOND}
    assert store.records() == [FIRST, SECOND, newer]


def test_a_line_that_a_killed_run_cut_off_is_told_passed_over_and_never_joined(
    store: Store[Record], capfd: pytest.CaptureFixture[str]
) -> None:
    store.append(FIRST)
    with open(store.path, "a") as file:
        file.write('{"key": "half')
    assert store.records() == [FIRST]
    warning = f"warning: {store.path}: passed over what is no record: line 2 (cut off)\n"
    assert capfd.readouterr().err == warning
    store.append(SECOND)
    assert store.records() == [FIRST, SECOND]
    assert store.path.read_text().splitlines()[1] == '{"key": "half'
    assert "line 2 (" in capfd.readouterr().err


def test_a_last_line_that_lacks_its_end_only_is_a_record(store: Store[Record]) -> None:
    store.append(FIRST)
    store.path.write_bytes(store.path.read_bytes().rstrip(b"\n"))
    store.append(SECOND)
    assert store.records() == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("junk\n", "Expecting value"),
        ("[1]\n", "an object is expected, got list"),
        ('{"key": "k"}\n', "lacks session, status, matrix"),
        (line_of(samples_ms=5), r"samples_ms must be list\[float\], got 5"),
        (line_of(samples_ms=["1"]), r"samples_ms must be list\[float\], got \['1'\]"),
        (line_of(samples_ms=[float("nan")]), "samples_ms must be times >= 0"),
        (line_of(k="8"), "k must be int, got '8'"),
        (line_of(k=True), "k must be int, got True"),
        (line_of(m=-1), "m must be >= 0, got -1"),
        (line_of(nnz=10**400), "nnz must be int, got 1000"),
        (line_of(prepare_ms="fast"), "prepare_ms must be float or null, got 'fast'"),
        (line_of(status="splendid"), "unknown status 'splendid'"),
        (line_of(environment=[]), "environment must be dict"),
        (line_of(environment={"libraries": 1}), "environment.libraries must be an object"),
        ("[" * 100_000 + "\n", "recursion"),
        ("9" * 5000 + "\n", "4300"),
        ("\0" * 50 + "\n", "Expecting value"),
    ],
)
def test_a_line_that_is_no_record_is_told_with_its_number_and_passed_over(
    line: str, reason: str, store: Store[Record], capfd: pytest.CaptureFixture[str]
) -> None:
    store.append(FIRST)
    with open(store.path, "a") as file:
        file.write(line)
    store.append(SECOND)
    assert store.records() == [FIRST, SECOND]
    warning = capfd.readouterr().err
    assert warning.startswith(f"warning: {store.path}: passed over what is no record: line 2 (")
    assert warning.count("\n") == 1
    assert re.search(reason, warning)


def test_bytes_that_are_no_text_are_passed_over(store: Store[Record]) -> None:
    store.append(FIRST)
    with open(store.path, "ab") as file:
        file.write(b"\xff\xfe\x80\n")
    store.append(SECOND)
    assert store.records() == [FIRST, SECOND]


def test_a_line_of_any_length_is_passed_over_without_being_held(
    store: Store[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LONGEST_LINE", 4000)  # one in MiB takes longer
    store.append(FIRST)
    with open(store.path, "a") as file:
        file.write("x" * 12_000 + "\n")
    store.append(SECOND)
    assert store.records() == [FIRST, SECOND]


def test_fields_of_another_version_are_told_and_passed_over(
    store: Store[Record], capfd: pytest.CaptureFixture[str]
) -> None:
    store.append(FIRST)
    with open(store.path, "a") as file:
        file.write(line_of(key="other", colour="red", facts={"runs": 3}))
    assert Record.retired == {"facts"}  # of which nothing is said
    assert [r.key for r in store.records()] == [FIRST.key, "other"]
    assert "fields that this version does not know: 'colour'\n" in capfd.readouterr().err


def test_many_broken_lines_are_told_in_one(
    store: Store[Record], capfd: pytest.CaptureFixture[str]
) -> None:
    store.append(FIRST)
    with open(store.path, "a") as file:
        file.write("junk\n" * 100)
    assert store.records() == [FIRST]
    warning = capfd.readouterr().err
    assert warning.endswith(" and 97 more\n")
    assert warning.count("\n") == 1


@pytest.mark.parametrize("kind", ["/dev/full", "/dev/zero", "a pipe", "a folder"])
def test_what_is_no_plain_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = Path(kind)
    if kind == "a pipe":
        os.mkfifo(path := tmp_path / "pipe")
    elif kind == "a folder":
        path = tmp_path
    store = Store(path, Record)
    for use in (store.records, store.refuse_unwritable, lambda: store.append(FIRST)):
        with pytest.raises(ExperimentError, match=f"must be in a plain file, and {path} is a "):
            use()


def test_a_folder_that_takes_no_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in ("/proc/no/records.jsonl", tmp_path / "file" / "records.jsonl", "x" * 300):
        with pytest.raises(ExperimentError, match=r"cannot (use|write)"):
            Store(path, Record).refuse_unwritable()


# Appends records of 1 KB to argv[1] and says how many were kept, until one is not.
_APPEND = """
import sys
from dataclasses import replace
from experiments.bench.errors import ExperimentError
from experiments.sddmm.record import Record
from experiments.bench.store import Store
from tests.experiments.records import record
store = Store(sys.argv[1], Record)
for i in range(int(sys.argv[2])):
    try:
        store.append(record("ours", 1.0, key=f"{sys.argv[3]}{i}", reason="x" * 1000))
    except ExperimentError as error:
        print(i, error, flush=True)
        break
    print(i + 1, flush=True)
"""


def appending(path: Path, count: int, name: str, file_limit: int | None = None) -> subprocess.Popen:
    def limit() -> None:
        if file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    command = [sys.executable, "-c", _APPEND, str(path), str(count), name]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=limit)


def test_where_no_more_can_be_written_the_append_fails_and_leaves_whole_lines(
    store: Store[Record], capfd: pytest.CaptureFixture[str]
) -> None:
    """A file limit takes a part of a line and then nothing, as a full disk does."""
    out, _ = appending(store.path, 10, "r", file_limit=4000).communicate(timeout=60)
    *_, last = out.splitlines()
    assert int(last.split()[0]) == 2
    assert last.endswith(f"cannot write to {store.path}: File too large")
    assert [r.key for r in store.records()] == ["r0", "r1"]
    assert capfd.readouterr().err == ""


def test_two_runs_append_to_one_file_and_lose_nothing(store: Store[Record]) -> None:
    runs = [appending(store.path, 300, name) for name in "ab"]
    for process in runs:
        assert process.communicate(timeout=60)[0].split()[-1] == "300"
    assert sorted(r.key for r in store.records()) == sorted(
        f"{name}{i}" for name in "ab" for i in range(300)
    )


def test_a_killed_run_loses_no_finished_record(store: Store[Record]) -> None:
    process = appending(store.path, 100_000, "r")
    assert process.stdout is not None
    output = [process.stdout.readline() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    output += process.stdout.readlines()
    process.wait(timeout=60)
    done = sum(1 for line in output if line.strip().isdigit())
    assert len(store.records()) in (done, done + 1)
    store.append(SECOND)
    assert store.records()[-1] == SECOND


def test_records_that_cannot_be_kept_are_told_when_the_run_is_done(tmp_path: Path) -> None:
    keep = Keeper(Store(tmp_path, Record))
    keep(FIRST)
    with pytest.raises(RecordsLost, match=r"^1 of 1 records were not kept: .* is a folder$"):
        keep.finish({"ours": "ok"})
    with pytest.raises(RecordsLost, match=r"is a folder; 1 of 1 rows are not right: ours$"):
        keep.finish({"ours": "wrong"})
    keep = Keeper(Store(tmp_path / "records.jsonl", Record))
    keep(FIRST)
    keep.finish({"ours": "ok"})
    with pytest.raises(RowsFailed, match="1 of 1 rows"):
        keep.finish({"ours": "failed"})
