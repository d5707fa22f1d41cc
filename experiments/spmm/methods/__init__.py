"""The methods that are compared: one file each, found by being here.

A module `NAME.py` of this folder defines two functions:

    refuses(case) -> str | None      why the method does not serve the case, in words
    prepare(case) -> run             what it does once per pattern and weights, timed apart;
                                     run() -> ([h,] m, d), or ([h,] n, d) of the transpose

and, where its user calls something else for a single product, a third one:

    public_call(case) -> run         run() is that call; making its arguments is not part of it

PARTIAL_SUMS_ROUND = True says of a peer that it adds partial sums in half types. A yardstick, which
computes something else on the same pattern, has a function of its own that verifies its result:

    reference(case) -> reference     reference.check(result) gives the verdict
"""

from experiments.bench.methods import MethodFolder

OURS, BASELINE = "ours", "cusparse_alg2"

# Methods that compute an SDDMM on the same pattern, d and heads, with whose times ours is compared.
ROW_GATHER, TILES = "row_gather", "sddmm_tiles"
YARDSTICKS = (ROW_GATHER, TILES)

METHODS = MethodFolder(__name__, first=(OURS, *YARDSTICKS, BASELINE, "cusparse_alg3"))
