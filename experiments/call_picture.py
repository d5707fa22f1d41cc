"""The picture of docs/how_it_works/call.md: the files that one GPU call enters, in order."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.bench.svg import BLUE, FAINT, GREEN, GREY, PAPER, Picture

_WIDTH, _TOP, _ROW, _HEADING = 940, 96, 22, 32
_FIRST, _LATER, _FILE, _SENTENCE = 40, 84, 116, 470


@dataclass(frozen=True)
class Step:
    """A file, what a call does there, and whether a later call and the first enter it."""

    file: str
    sentence: str
    later: bool = False
    first: bool = True


@dataclass(frozen=True)
class Part:
    """Steps that belong together, under a heading."""

    heading: str
    steps: tuple[Step, ...]


_CUDA = "sddmm/backends/cuda"
PARTS = (
    Part("Read the arguments", (
        Step("sddmm/ops/sddmm.py", "The function that users call.", True),
        Step("sddmm/operands.py", "Takes in a and b; checks them, once per signature.", True),
        Step("sddmm/ops/routing.py", "May the call read memory, or does torch trace it?", True),
    )),
    Part("Look up the plan", (
        Step("sddmm/sparse/index_tensors.py", "Have the indices changed since last time?", True),
        Step("sddmm/cache.py", "Has it plans for these tensors? Counts what is kept."),
        Step("sddmm/prepared.py", "Keeps a pattern's plans; for how many runs is the next?", True),
    )),
    Part("Compute without a plan", (
        Step(f"{_CUDA}/single_run.py", "Launches analysis and row_gather; ready per problem."),
        Step(f"{_CUDA}/analysis.py", "The pass over the indices: are they valid, how ordered?"),
        Step(f"{_CUDA}/pinned_results.py", "The words in which it reports; the host polls them."),
    )),
    Part("Launch", (
        Step("sddmm/memory.py", "Allocates the result, or says how many bytes it needs.", True),
        Step(f"{_CUDA}/executor.py", "Holds packed parameters per pair of addresses.", True, False),
        Step("gemm_core/runtime/launch.py", "Calls the driver, on torch's current stream.", True),
    )),
)  # fmt: skip


def steps(later: bool = False) -> tuple[str, ...]:
    """The files that the first call enters, or a later one, in order."""
    every = [step for part in PARTS for step in part.steps]
    return tuple(step.file for step in every if (step.later if later else step.first))


def draw() -> str:
    """The picture as SVG: a row per file, a lane per call, a dot where the call enters the file."""
    rows = sum(len(part.steps) for part in PARTS)
    height = _TOP + rows * _ROW + len(PARTS) * _HEADING + 20
    title = "One GPU call of sddmm(pattern, a, b), file by file"
    picture = Picture(_WIDTH, height, title)
    picture.text(16, 30, title, size=16, bold=True)
    counts = len(steps()), len(steps(later=True))
    picture.text(
        16, 50, f"The first call on a pattern enters {counts[0]} files, a later one {counts[1]}: "
        f"it finds what the second and the third have prepared.", color=GREY,
    )  # fmt: skip
    for x, label, color in ((_FIRST, "1st", BLUE), (_LATER, "later", GREEN)):
        picture.text(x, _TOP - 16, label, size=11.5, color=color, anchor="middle", bold=True)
        picture.line(x, _TOP - 8, x, height - 16, color, width=1.5, arrow=True)
    y = _TOP
    for part in PARTS:
        picture.line(_FILE, y + 4, _WIDTH - 16, y + 4, FAINT)
        picture.text(_FILE, y + 23, part.heading, size=12.5, bold=True)
        y += _HEADING
        for step in part.steps:
            _row(picture, y, step)
            y += _ROW
    return picture.svg()


def _row(picture: Picture, y: float, step: Step) -> None:
    for x, color, enters in ((_FIRST, BLUE, step.first), (_LATER, GREEN, step.later)):
        if enters:
            picture.rect(x - 6, y + 5, 12, 12, color, PAPER, radius=6)
    picture.text(_FILE, y + 15, step.file, size=11.5, mono=True)
    picture.text(_SENTENCE, y + 15, step.sentence, size=11.5)
