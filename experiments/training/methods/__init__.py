"""The methods that are compared: one file each, found by being here.

A module `NAME.py` of this folder defines `refuses(case)` and `prepare(case) -> run`, as the methods
of SDDMM do; run() -> Step computes the values and the gradients of both operands.

PARTIAL_SUMS_ROUND = True says of a peer that it adds partial sums in half types. A yardstick has a
function `reference`, as those of SpMM.
"""

from experiments.bench.methods import MethodFolder

OURS, OURS_EAGER, BASELINE = "ours", "ours_eager", "sampled_addmm"

# Methods that compute the forward alone, with whose times ours is compared.
ROW_GATHER, FORWARD = "row_gather", "forward"
YARDSTICKS = (ROW_GATHER, FORWARD)

METHODS = MethodFolder(__name__, first=(OURS, OURS_EAGER, *YARDSTICKS, BASELINE))
