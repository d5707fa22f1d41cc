"""Random cases against float64: python -m tests.fuzz --cases 10000.

The last lines are a table of the outcomes; the exit status is 1 if any case failed. A failing case
is printed as it is called again: `python -m tests.fuzz --seed 0 --case 17`, and as the `Case(...)`
that tests/sddmm/test_fuzz.py may keep under a name.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

from tests.fuzz.case import Case
from tests.fuzz.shrink import smallest
from tests.fuzz.workers import Done, Source, guarded_run, kernels_of, run_all, set_up


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--case", type=int, help="this one alone, in this process")
    parser.add_argument("--device", choices=("cpu", "cuda", "emulated"), default="cpu")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after that long")
    parser.add_argument("--out", type=Path, help="write each failure as a line of JSON")
    parser.add_argument("--replay", type=Path, help="run the cases of such a file")
    parser.add_argument("--shrink", action="store_true", help="with --case: find a smaller one")
    return parser.parse_args(arguments)


def main(chosen: argparse.Namespace) -> int:
    kernels = kernels_of(chosen.device)
    listed: tuple[Case, ...] = ()
    if chosen.replay is not None:
        lines = chosen.replay.read_text().splitlines()
        listed = tuple(Case(**json.loads(line)["case"]) for line in lines)
    source = Source(chosen.seed, chosen.device, kernels, listed)
    if chosen.case is not None:
        return alone(source, chosen.case, chosen.shrink)
    numbers = range(len(listed)) if listed else range(chosen.first, chosen.first + chosen.cases)
    begin = time.perf_counter()
    report = Report(source, chosen.out)
    for done in run_all(source, numbers, chosen.workers, chosen.seconds):
        report.add(done)
    report.show(len(numbers), time.perf_counter() - begin)
    return 1 if report.failures else 0


def alone(source: Source, number: int, shrink: bool) -> int:
    """One case in this process, so that a debugger sees it."""
    warnings.simplefilter("ignore")
    set_up(source.device)
    case = source.case(number)
    outcome = guarded_run(case)
    print(case, outcome.kind, outcome.text, sep="\n")
    if outcome.failed and shrink:
        small, outcome = smallest(case, outcome)
        print("smaller:", small, outcome.kind, outcome.text, sep="\n")
    return 1 if outcome.failed else 0


class Report:
    """Counts of the outcomes, and the failures as they come."""

    def __init__(self, source: Source, path: Path | None) -> None:
        self.source, self.failures = source, 0
        self.kinds: Counter[str] = Counter()
        self.reasons: dict[str, Counter[str]] = {}
        self.examples: dict[tuple[str, str], int] = {}
        self.file = path.open("w", encoding="utf-8") if path is not None else None

    def add(self, done: Done) -> None:
        kind, text = done.outcome
        self.kinds[kind] += 1
        if kind == "ok":
            return
        reason = without_numbers(text)
        self.reasons.setdefault(kind, Counter())[reason] += 1
        if not done.outcome.failed:
            return
        self.failures += 1
        case = self.source.case(done.number)
        if (kind, reason) not in self.examples:
            self.examples[kind, reason] = done.number
            print(f"\n{kind}: {text}\n  {self.command(done.number)}\n  {case}", flush=True)
        if self.file is not None:
            line = {"number": done.number, "kind": kind, "text": text}
            line["case"] = json.loads(case.as_json())
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()

    def command(self, number: int) -> str:
        device = "" if self.source.device == "cpu" else f" --device {self.source.device}"
        return f"python -m tests.fuzz --seed {self.source.seed} --case {number}{device}"

    def show(self, asked: int, seconds: float) -> None:
        print(f"\n{sum(self.kinds.values())} of {asked} cases in {seconds:.0f} s")
        for kind, count in self.kinds.most_common():
            print(f"{count:7d}  {kind}")
            for reason, times in self.reasons.get(kind, Counter()).most_common():
                print(f"         {times:7d}  {reason[:120]}")
        print(f"{self.failures} failed")


def without_numbers(text: str) -> str:
    """A reason as it is counted: what differs from case to case left out."""
    text = re.sub(r"-?\b(\d[\dx.e+-]*|nan|inf)\b", "#", text)
    text = re.sub(r"\((#(, )?)*\)", "(#)", text)
    return re.sub(r"\b(float16|bfloat16|float32|float64|int32|int64)\b", "dtype", text)[:200]


if __name__ == "__main__":
    sys.exit(main(options()))
