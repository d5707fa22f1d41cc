"""How each method is drawn: one table for the pictures of all objectives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# The colours of Okabe and Ito (2008), which colour-blind readers tell apart.
BLACK, GREY, ORANGE, SKY, GREEN = "#000000", "#707070", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"


@dataclass(frozen=True)
class Look:
    """A colour and a marker; no two methods share both, so that pictures can be printed in grey.

    hollow: whether the marker has an outline only.
    """

    color: str
    marker: str
    hollow: bool = False


LOOKS = {
    # ours
    "ours": Look(BLUE, "o"),
    "ours_eager": Look(BLUE, "o", hollow=True),
    # operations on several ranks
    "sddmm": Look(BLUE, "o"),
    "spmm": Look(ORANGE, "^"),
    "training": Look(SKY, "P"),
    "attention": Look(GREEN, "s"),
    # libraries
    "cusparse": Look(GREEN, "s"),
    "cusparse_alg2": Look(GREEN, "s"),
    "cusparse_alg3": Look(GREEN, "s", hollow=True),
    "cusparse_alg2_permuted": Look(GREEN, "d"),
    "cusparse_alg3_permuted": Look(GREEN, "d", hollow=True),
    "torch_csr": Look(ORANGE, "^"),
    "torch_bsr": Look(PURPLE, "D"),
    "torch_float32": Look(ORANGE, "^", hollow=True),
    "sampled_addmm": Look(ORANGE, "^"),
    "torch_dense": Look(PURPLE, "D"),
    "flex": Look(GREEN, "s"),
    "sdpa": Look(PURPLE, "D"),
    "turbo_gnn": Look(VERMILLION, "v"),
    "cublas": Look(BLACK, "s"),
    "cublas_tf32": Look(BLACK, "s", hollow=True),
    # re-implementations
    "isratnisa": Look(VERMILLION, "v"),
    "zcx": Look(VERMILLION, "v", hollow=True),
    # compositions of operations of torch or numpy
    "gather_einsum": Look(SKY, "P"),
    "gather_index_add": Look(SKY, "P"),
    "gather_sum": Look(SKY, "P"),
    "gather_scatter": Look(SKY, "P"),
    "parts": Look(BLUE, "o", hollow=True),
    "scipy_rows": Look(SKY, "X"),
    # yardsticks
    "row_gather": Look(GREY, "<", hollow=True),
    "sddmm_tiles": Look(GREY, ">", hollow=True),
    "forward": Look(GREY, ">", hollow=True),
}
# The kernels of the GEMM ladder by what computes their products.
FAMILIES = {
    "CUDA cores": Look(GREY, "v"),
    "WMMA": Look(ORANGE, "^"),
    "mma.sync": Look(GREEN, "s"),
    "wgmma": Look(BLUE, "o"),
    "others": Look(PURPLE, "D"),
}
# What a method that is not in the table gets, in the order of the records.
_SPARE = tuple(
    Look(color, marker, hollow)
    for marker, hollow in (("p", False), ("p", True), ("h", False), ("h", True))
    for color in (BLACK, SKY, PURPLE, VERMILLION, ORANGE, GREEN, BLUE, GREY)
)


def looks(names: Iterable[str]) -> dict[str, Look]:
    """The look of each of these methods, in their order."""
    spare = iter(_SPARE * 8)
    return {name: LOOKS.get(name) or next(spare) for name in dict.fromkeys(names)}
