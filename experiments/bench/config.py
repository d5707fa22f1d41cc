"""The configuration that objectives share: what may be set, its type and its range."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.bench.keys import Rule, at_least, check, key, require

DTYPES = ("float16", "bfloat16", "float32", "float64")
FORMATS = ("tex", "parquet")


@dataclass
class Timing:
    """When a method has been timed enough, and when it takes too long."""

    min_samples: int = key(
        3,
        "How many samples of a method are taken at least.",
        "timing.min_samples=5",
        Rule("in 1..timing.max_samples", lambda value: value >= 1),
    )
    max_samples: int = key(
        50,
        "How many samples of a method are taken at most; a method is done then, or after "
        "timing.seconds.",
        "timing.max_samples=20",
        at_least(1),
    )
    seconds: float = key(
        1.0,
        "The time of a method's own samples in seconds after which it is done, once it has "
        "timing.min_samples.",
        "timing.seconds=0.2",
        at_least(0),
    )
    # The longest that a timer of the system takes is far beyond; a run is not.
    timeout_s: float = key(
        600.0,
        "The time in seconds after which a preparation or a verified call is given up.",
        "timing.timeout_s=60",
        Rule("in 0 < timeout_s <= 1e9", lambda value: 0 < value <= 1e9),
    )
    calls: int = key(
        20,
        "How many preparations and first calls of a method are timed, at most.",
        "timing.calls=4",
        at_least(1),
    )
    warm_up_ms: float | None = key(
        None,
        "The time in ms of the uncounted runs before a method's samples on a GPU; null: until "
        "times are steady.",
        "timing.warm_up_ms=4",
        at_least(0),
    )
    samples_per_round: int = key(
        5,
        "How many samples of a method are taken before the next method has its turn.",
        "timing.samples_per_round=2",
        at_least(1),
    )
    slowest: float | None = key(
        None,
        "A method whose verified run takes so many times that of the fastest is timed once, and "
        "its preparation is not; null: no method is too slow.",
        "timing.slowest=30",
        at_least(1),
    )

    def __post_init__(self) -> None:
        require(
            1 <= self.min_samples <= self.max_samples,
            "timing.min_samples",
            f"in 1..max_samples = {self.max_samples}",
            self.min_samples,
        )
        check(self, "timing.")


@dataclass
class ReportConfig:
    """Merges records into tables, pictures and one HTML page."""

    records: list[str] = key(
        ["results/records.jsonl"],
        "The files of records to merge.",
        "records=results/records.jsonl,other.jsonl",
    )
    output: str = key(
        "results/report",
        "The folder for the reports and the pictures; it is made if it is absent.",
        "output=results/today",
    )
    plots: bool = key(True, "Whether pictures are drawn.", "plots=false")
    reference: str = key(
        "",
        "The method that speed-ups refer to; none: the objective's baseline in tables and the "
        "fastest peer of each case in pictures.",
        "reference=torch_csr",
    )
    html: bool = key(
        True,
        "Whether report.html is written, which holds the tables and the pictures.",
        "html=false",
    )
    formats: list[str] = key(
        [],
        "Further files of every table: tex (LaTeX with booktabs) and parquet; they need the extra "
        "exports.",
        "formats=tex,parquet",
        Rule(f"of {', '.join(FORMATS)}", lambda names: set(names) <= set(FORMATS), FORMATS),
    )
    quiet: bool = key(
        False, "Print what was found and where it is written, without the tables.", "quiet=true"
    )
    compare: list[str] = key(
        [],
        "Two commits, to set side by side in compare.md instead: hashes, or names that git knows.",
        "compare=HEAD~1,HEAD",
    )
