"""The methods that are compared: one file each, found by being here.

A module `NAME.py` of this folder defines two functions:

    refuses(case) -> str | None      why the method does not serve the case, in words
    prepare(case) -> run             what it does once per pattern, timed apart;
                                     run() -> (nnz,) tensor of values in the pattern's order

and, where its user calls something else for a single product, a third one:

    public_call(case) -> run         run() is that call; making its arguments is not part of it

A method that multiplies its values by those of the matrix, where a case has some, says so by
`scales = True`; the values of all others are multiplied when they are computed (`scaled.py`).

A method that is a re-implementation is named in REIMPLEMENTED too, from which every table says it.
"""

from experiments.bench.methods import MethodFolder

OURS, BASELINE = "ours", "isratnisa"

# Re-implementations of published methods, and whose methods they are.
REIMPLEMENTED = {
    "isratnisa": "cuSDDMM, Nisa et al., HiPC 2018",
    "zcx": "the WMMA kernel of the published SDDMM log",
}

METHODS = MethodFolder(__name__, first=(OURS, BASELINE))
