"""The commands on sparse matrices: SDDMM, and by the key `objective` SpMM and training steps."""

from experiments.bench.commands import Call, Measure, Report
from experiments.sddmm.config import Config, ReportConfig

_OBJECTIVE = "experiments.sddmm.objective:SDDMM"
_OBJECTIVES = {
    "spmm": "experiments.spmm.objective:SPMM",
    "training": "experiments.training.objective:TRAINING",
}

COMMANDS = (
    Measure(
        "run",
        config="config",
        schema=Config,
        target=_OBJECTIVE,
        help=(
            "run [+matrix=M] [k=K] [sparsity=S] ...   measure every method on a matrix: verify, "
            "time, record",
            "run +study=NAME                          a sweep: published_5000, published_10000, "
            "...",
            "run -m matrix=A,B k=256,512              a sweep of your own",
            "run objective=spmm|training ...          spmm, or sddmm with its gradients, instead",
        ),
        lists=("only",),
        targets=_OBJECTIVES,
    ),
    Call(
        "warm",
        config="config",
        schema=Config,
        target="experiments.sddmm.ahead:warm",
        help=("warm +study=NAME                         generate and compile what a study needs",),
        lists=("only",),
        targets={
            "spmm": "experiments.spmm.ahead:warm",
            "training": "experiments.training.ahead:warm",
        },
    ),
    Report(
        "report",
        config="report",
        schema=ReportConfig,
        target=_OBJECTIVE,
        help=(
            "report [output=DIR] [records=[FILE,...]] merge records into tables and plots",
            "report compare=[A,B]                     two commits side by side, case by case",
        ),
        lists=("records", "compare"),
        targets=_OBJECTIVES,
    ),
)
