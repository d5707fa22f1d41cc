"""The commands of the GEMM objective."""

from experiments.bench.commands import Measure, Report
from experiments.gemm.config import GemmConfig, LadderConfig

_OBJECTIVE = "experiments.gemm.objective:GEMM"

COMMANDS = (
    Measure(
        "gemm",
        config="gemm",
        schema=GemmConfig,
        target=_OBJECTIVE,
        help=(
            ("gemm shape=MxNxK dtype=D", "every GEMM variant against cuBLAS at one shape"),
            ("gemm +shapes=NAME", "the shapes of a list: hgemm, hopper, skinny, tf32, ..."),
        ),
    ),
    Report(
        "ladder",
        config="ladder",
        schema=LadderConfig,
        target=_OBJECTIVE,
        help=(("ladder records=A,B", "merge files of records of gemm into tables and a plot"),),
    ),
)
