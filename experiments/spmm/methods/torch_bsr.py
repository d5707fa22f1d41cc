"""Calls torch's product of a BSR tensor and a dense one, a Triton kernel for half types on a GPU.

It serves patterns that are made of whole blocks, which the tensor is made of in its preparation.
Heads are calls one after another, whose results are stacked.
"""

from __future__ import annotations

from experiments.bench.methods import Run
from experiments.spmm.case import Case
from experiments.spmm.methods import torch_csr

PARTIAL_SUMS_ROUND = True


def refuses(case: Case) -> str | None:
    if case.definition.get("source") != "RandomBlocks":
        return "the pattern is not made of blocks"
    block = case.definition["block"]
    if case.m % block or case.n % block:
        return f"blocks of {block} are cut at the edge of {case.m} x {case.n}"
    if not case.device.startswith("cuda"):
        return "torch's BSR product needs MKL on a CPU"
    return None


def prepare(case: Case) -> Run:
    side = case.definition["block"]
    heads = [(W.to_sparse_bsr((side, side)), dense) for W, dense in torch_csr.heads_of(case)]
    return torch_csr.run_of(case, heads)
