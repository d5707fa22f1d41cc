"""The methods that are compared: one file each, found by being here.

A module `NAME.py` of this folder defines two functions:

    refuses(case) -> str | None      why the method does not serve the case, in words
    prepare(case) -> run             what it does once per pattern, timed apart;
                                     run() -> Step, with the gradients where case.backward says so

and, where its user calls something else for a single attention, a third one:

    public_call(case) -> run         run() is that call; making its arguments is not part of it

IS_PEER = True says that a method is not ours, and may round half types more often (verify.py). The
yardstick, which computes an SDDMM, has a function of its own that verifies its result:

    reference(case) -> reference     reference.check(result) gives the verdict

A method that is a re-implementation is named in REIMPLEMENTED too, from which every table says it.
"""

from experiments.bench.methods import MethodFolder
from experiments.spmm.methods.sddmm_tiles import MASKS as _MASKS

OURS, BASELINE, FLEX, PARTS = "ours", "gather_scatter", "flex", "parts"

# An SDDMM on the same pattern, d and heads, with whose time ours is compared.
ROW_GATHER = "row_gather"
YARDSTICKS = (ROW_GATHER,)

# The classes of patterns that are masks made of tiles, on which ours is compared with flex.
MASKS = (*_MASKS, "dilated")

# Re-implementations, and whose methods they are.
REIMPLEMENTED = {BASELINE: "PyTorch Geometric's TransformerConv"}

METHODS = MethodFolder(__name__, first=(OURS, ROW_GATHER, FLEX, "sdpa", PARTS, BASELINE))
