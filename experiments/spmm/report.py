"""The report of a study of SpMM: ours beside its yardstick, cuSPARSE and the other peers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

from experiments.bench.page.tables import CASE
from experiments.sddmm.columns import PROBLEMS, SHORT
from experiments.sddmm.report_cells import (
    Best,
    best_cell,
    least,
    mean_cell,
    microseconds,
    present,
    ratio,
    ratio_cell,
    time_cell,
)
from experiments.sddmm.study_problem import HeldToYardstick, times_of
from experiments.sddmm.study_report import (
    LOST,
    MOST_REGRET,
    StudyReport,
    lost_lines,
    over_limit_lines,
    regret_lines,
)
from experiments.spmm.methods import ROW_GATHER, TILES, YARDSTICKS
from experiments.spmm.record import Record

# How long a product may take, in times of its yardstick: as it is, transposed, and on masks.
LIMIT, LIMIT_TRANSPOSED, LIMIT_ON_TILES = 1.35, 1.6, 1.6
# The name of K in this objective.
D = "d"
_CUSPARSE = ("cusparse_alg2", "cusparse_alg3")
# cuSPARSE on weights in S's order, which every call puts in the order of the transpose; and the
# peers whose weights are in the order of the transpose before the call.
_PERMUTED = tuple(f"{name}_permuted" for name in _CUSPARSE)
_SORTED_BEFOREHAND = (*_CUSPARSE, "torch_csr", "torch_bsr")
_SLOWER = "**A peer is faster by more than 3 %"


class Problem(HeldToYardstick[Record]):
    """The records of one product."""

    size, beside_peers, lost_below = D, YARDSTICKS, LOST

    def way_of(self, method: str) -> str:
        """How a library was called, where there are several ways."""
        return "".join(r.variant for r in self.others if r.method == method)

    @property
    def yardstick(self) -> str:
        """The SDDMM with which ours is compared: on masks that by tiles."""
        return ROW_GATHER if self.us_of(TILES) is None else TILES

    @property
    def limit(self) -> float:
        if self.yardstick == TILES:
            return LIMIT_ON_TILES
        return LIMIT_TRANSPOSED if self.ours.transpose else LIMIT

    @cached_property
    def best_cusparse(self) -> Best | None:
        return least((name, self.us_of(name)) for name in _CUSPARSE)

    @property
    def cusparse_lead(self) -> float | None:
        """The time of cuSPARSE's fastest algorithm over ours, its weights sorted beforehand."""
        return ratio(self.best_cusparse and self.best_cusparse[1], self.us)

    @cached_property
    def best_peer(self) -> Best | None:
        """The fastest peer; cuSPARSE has the weights of a transpose sorted beforehand."""
        return self._fastest_but(_PERMUTED)

    @cached_property
    def best_permuting_peer(self) -> Best | None:
        """The fastest peer whose weights of a transpose are in S's order, as ours are."""
        return self._fastest_but(_SORTED_BEFOREHAND) if self.ours.transpose else None

    @property
    def is_lost_to_permuting_peer(self) -> bool:
        lead = ratio(self.best_permuting_peer and self.best_permuting_peer[1], self.us)
        return lead is not None and lead < self.lost_below

    @property
    def permuted_lead(self) -> float | None:
        """The time of cuSPARSE's fastest algorithm over ours, its weights in S's order."""
        best = least((name, self.us_of(name)) for name in _PERMUTED)
        return ratio(best and best[1], self.us)

    @cached_property
    def best_other(self) -> Best | None:
        """The fastest peer besides cuSPARSE called raw."""
        return self._fastest_but((*_CUSPARSE, *_PERMUTED))

    def _fastest_but(self, methods: Collection[str]) -> Best | None:
        return least(times_of(r for r in self.peers if r.method not in methods))

    @property
    def other_lead(self) -> float | None:
        return ratio(self.best_other and self.best_other[1], self.us)


_GROUPS = {
    CASE: PROBLEMS,
    "ours": {
        "status": "how our own call went",
        "chosen": "the kernel that the planner chose",
        "us": "kernel time of the choice",
        "predicted_us": "what the cost model predicted for it",
        "best_kernel": "the fastest of our kernels, each measured by its name",
        "best_us": "its time",
        "regret": "the choice over the fastest of our kernels",
    },
    "yardsticks": {
        "row_gather_us": "our SDDMM on the same pattern, by the kernel row_gather",
        "sddmm_tiles_us": "our SDDMM on a mask, by the kernel that the planner chooses",
        "over_yardstick": "our product over its yardstick",
        "limit": "what that ratio may be",
    },
    "peers": {
        "cusparse_alg2_us": "cusparseSpMM with CSR_ALG2, called raw",
        "cusparse_alg3_us": "cusparseSpMM with CSR_ALG3, called raw",
        "cusparse_alg2_way": "how it was called, the fastest way",
        "cusparse_alg3_way": "how it was called, the fastest way",
        "cusparse_over_ours": "the faster of the two over ours, of a transpose with its weights "
        "sorted beforehand; below 1 we lose",
        "cusparse_alg2_permuted_us": "CSR_ALG2 that puts the weights in order in each call",
        "cusparse_alg3_permuted_us": "CSR_ALG3 that puts the weights in order in each call",
        "cusparse_alg2_permuted_way": "how it was called, the fastest way",
        "cusparse_alg3_permuted_way": "how it was called, the fastest way",
        "cusparse_permuted_over_ours": "the faster of these two over ours; below 1 we lose",
        "torch_csr_us": "torch's CSR product",
        "torch_bsr_us": "torch's BSR product, of patterns that are made of blocks",
        "gather_index_add_us": "rows gathered, then added by index_add",
        "other": "the fastest of torch_csr, torch_bsr and gather_index_add",
        "other_over_ours": "its time over ours; below 1 we lose",
    },
    "preparation": {
        "prepare_us": "what is done once per pattern",
        "column_view_us": "the part of it that checks the pattern and groups it by column",
    },
}
_SHORT = SHORT | {
    *("device", "class", "chosen", "us", "regret", "over_yardstick", "cusparse_over_ours"),
    "cusparse_permuted_over_ours",
}

_LEGEND = (
    "Kernel times in us. `yardstick`: our SDDMM on the same pattern, d and heads, by `row_gather`, "
    "and on masks by the kernel that the planner chooses. `cuSPARSE`: the faster of cusparseSpMM's "
    "CSR_ALG2 and CSR_ALG3, called raw and preprocessed. `other`: the fastest of `torch_csr`, "
    "`torch_bsr` and `gather_index_add`. Of a transpose, `sorted beforehand` says that the weights "
    "of cuSPARSE, `torch_csr` and `torch_bsr` are in the order of the transpose before the call; "
    "`permuted in each call` says that they are in S's order, as ours are, and every call puts "
    "them in that of the transpose. `column view`: checking the pattern and grouping it by column, "
    "once. `first`: the whole first call on a pattern never seen. Every column is in report.csv."
)


class SpmmReport(StudyReport[Record, Problem]):
    problem, groups, short, legend = Problem, _GROUPS, _SHORT, _LEGEND

    def lists(self, found: Sequence[Problem]) -> Mapping[str, Sequence[str]]:
        return {
            "**Above the limit**": over_limit_lines(found),
            **_lost_lists(found),
            f"**A regret above {MOST_REGRET}**": regret_lines(found, MOST_REGRET),
        }

    def means(self, own: Sequence[Problem], found: Sequence[Problem]) -> dict[str, str]:
        ratios = present(p.over_yardstick for p in own)
        leads = present(p.cusparse_lead for p in own)
        return {
            "ours / yardstick, mean": mean_cell(ratios),
            "largest": ratio_cell(max(ratios, default=None)),
            "above the limit": str(sum(p.is_over_limit for p in own)),
            f"{_cusparse(found)} / ours, mean": mean_cell(leads),
            "least": ratio_cell(min(leads, default=None)),
            **_permuted_mean(own, found),
            "other / ours, mean": mean_cell(p.other_lead for p in own),
            _lost(found): str(sum(p.is_lost for p in own)),
        }

    def rows(self, found: Sequence[Problem]) -> list[dict[str, str]]:
        return [_row(p, found) for p in found]

    def csv_row(self, p: Problem) -> dict[str, object]:
        r = p.ours
        kernel, other = (best or ("", None) for best in (p.best_kernel, p.best_other))
        libraries = (*_CUSPARSE, *_PERMUTED, "torch_csr", "torch_bsr", "gather_index_add")
        return {
            "transpose": r.transpose, "status": r.status, "chosen": r.kernel, "us": p.us,
            "predicted_us": r.predicted_us.get(r.kernel),
            "best_kernel": kernel[0], "best_us": kernel[1], "regret": p.regret,
            "row_gather_us": p.us_of(ROW_GATHER), "sddmm_tiles_us": p.us_of(TILES),
            "over_yardstick": p.over_yardstick, "limit": p.limit,
            **{f"{name}_us": p.us_of(name) for name in libraries},
            **{f"{name}_way": p.way_of(name) for name in (*_CUSPARSE, *_PERMUTED)},
            "cusparse_over_ours": p.cusparse_lead,
            "cusparse_permuted_over_ours": p.permuted_lead,
            "other": other[0], "other_over_ours": p.other_lead,
            "prepare_us": microseconds(r.prepare_ms),
            "column_view_us": microseconds(r.column_view_ms),
        }  # fmt: skip


def _directions(found: Sequence[Problem]) -> set[bool]:
    """Whether products of the transpose are among these problems, and whether others are."""
    return {p.ours.transpose for p in found}


def _cusparse(found: Sequence[Problem]) -> str:
    """The name of cuSPARSE in the columns that compare ours with its fastest call."""
    return "cuSPARSE sorted beforehand" if True in _directions(found) else "cuSPARSE"


def _lost(found: Sequence[Problem]) -> str:
    """The name of the column that counts the problems lost to a peer."""
    return "lost to a peer" + (", sorted beforehand" if True in _directions(found) else "")


def _has_permuted(found: Sequence[Problem]) -> bool:
    """Whether cuSPARSE was measured on weights in S's order."""
    return any(p.permuted_lead is not None for p in found)


def _permuted_mean(own: Sequence[Problem], found: Sequence[Problem]) -> dict[str, str]:
    """The column that compares ours with cuSPARSE on weights in S's order, if that was measured."""
    if not _has_permuted(found):
        return {}
    mean = mean_cell(p.permuted_lead for p in own)
    return {"cuSPARSE permuted in each call / ours, mean": mean}


def _lost_lists(found: Sequence[Problem]) -> dict[str, list[str]]:
    """The problems that a peer computes faster; transposed, a list for each order of weights."""
    if True not in _directions(found):
        return {f"{_SLOWER}**": lost_lines(found)}
    lists = {f"{_SLOWER}, with weights sorted beforehand**": lost_lines(found)}
    if _has_permuted(found):
        lists[f"{_SLOWER}, with weights permuted in each call**"] = [
            f"* {p.name}: {best_cell(p.best_permuting_peer)} us, ours {time_cell(p.us)}"
            for p in found
            if p.is_lost_to_permuting_peer
        ]
    return lists


def _row(p: Problem, found: Sequence[Problem]) -> dict[str, str]:
    """found: the problems of the table, which has columns for what some of them have."""
    r, directions = p.ours, _directions(found)
    permuted = {"cuSPARSE permuted in each call / ours": ratio_cell(p.permuted_lead)}
    column_view = {"column view us": time_cell(microseconds(r.column_view_ms))}
    return {
        **({"transpose": "T" if r.transpose else ""} if len(directions) > 1 else {}),
        "chosen": r.kernel or r.status,
        "us": time_cell(p.us),
        "regret": ratio_cell(p.regret),
        "ours / yardstick": ratio_cell(p.over_yardstick),
        f"{_cusparse(found)} / ours": ratio_cell(p.cusparse_lead),
        **(permuted if _has_permuted(found) else {}),
        "other / ours": ratio_cell(p.other_lead),
        **(column_view if True in directions else {}),
    }


REPORT = SpmmReport()
