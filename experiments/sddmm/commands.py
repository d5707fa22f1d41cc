"""The commands on sparse matrices: SDDMM, and by the key `objective` SpMM, training, attention."""

from typing import Any

from experiments.bench.commands import Command, Job, Measure, Report
from experiments.sddmm.config import Config, ReportConfig

_OBJECTIVE = "experiments.sddmm.objective:SDDMM"
_OBJECTIVES = {
    "spmm": "experiments.spmm.objective:SPMM",
    "training": "experiments.training.objective:TRAINING",
    "attention": "experiments.attention.objective:ATTENTION",
    "distributed": "experiments.distributed.objective:DISTRIBUTED",
}
_FOLDERS = {
    "methods": tuple(
        f"experiments.{name}.methods" for name in ("sddmm", "spmm", "training", "attention")
    )
}


class Warm(Command):
    """Fills the caches for the problems of a study, and measures nothing."""

    def __call__(self, settings: Any, job: Job) -> None:
        from experiments.sddmm.problems import problems_of

        self.load(settings).fill_caches([problem for _, problem in problems_of(settings)])


COMMANDS = (
    Measure(
        "run",
        config="config",
        schema=Config,
        target=_OBJECTIVE,
        help=(
            ("run +matrix=M k=K", "measure every method on a matrix: verify, time, record"),
            ("run +study=NAME", "the runs of a study: peers, published_5000, ..."),
            ("run matrix=A,B k=256,512", "every combination of these values"),
            ("run objective=spmm", "spmm, attention, or training: sddmm with its gradients"),
            ("run +distributed=ring", "several GPUs or processes: start it with torchrun"),
        ),
        targets=_OBJECTIVES,
        folders=_FOLDERS,
    ),
    Warm(
        "warm",
        config="config",
        schema=Config,
        target=_OBJECTIVE,
        help=(("warm +study=NAME", "generate the matrices and compile the kernels of a study"),),
        targets={name: _OBJECTIVES[name] for name in ("spmm", "training", "attention")},
        folders=_FOLDERS,
        about="Generates the matrices and compiles the kernels of a study, so that no run waits.",
    ),
    Report(
        "report",
        config="report",
        schema=ReportConfig,
        target=_OBJECTIVE,
        help=(
            ("report records=A,B", "merge files of records into tables and plots"),
            ("report compare=A,B", "two commits side by side, case by case"),
        ),
        targets=_OBJECTIVES,
    ),
)
