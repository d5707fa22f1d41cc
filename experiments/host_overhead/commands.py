"""The command of the measurement of host overhead."""

from experiments.bench.commands import Call
from experiments.host_overhead.config import LaunchConfig

COMMANDS = (
    Call(
        "launch",
        config="launch",
        schema=LaunchConfig,
        target="experiments.host_overhead.run:run",
        help=(("launch", "what a launch costs the host"),),
    ),
)
