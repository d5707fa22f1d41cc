"""The commands of the SDDMM objective."""

from experiments.bench.commands import Call, Measure, Report
from experiments.bench.config import ReportConfig
from experiments.sddmm.config import Config

_OBJECTIVE = "experiments.sddmm.objective:SDDMM"

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
        ),
        lists=("only",),
    ),
    Call(
        "warm",
        config="config",
        schema=Config,
        target="experiments.sddmm.ahead:warm",
        help=("warm +study=NAME                         generate and compile what a study needs",),
        lists=("only",),
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
    ),
)
