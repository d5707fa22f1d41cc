"""The table of dtypes says what torch says of them, and nothing else in the package says it."""

from __future__ import annotations

import re

import pytest
import torch

from sddmm.dtypes import DTYPES, HALF_DTYPES, PRECISIONS, common_accumulator, is_less_exact
from tests.conftest import ROOT


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_facts_of_a_dtype_are_torchs(dtype: torch.dtype) -> None:
    facts = DTYPES[dtype]
    assert facts.unit_roundoff == torch.finfo(dtype).eps / 2
    assert facts.is_half == (dtype in HALF_DTYPES) == (dtype.itemsize == 2)
    assert facts.accumulator == torch.promote_types(dtype, torch.float32)


def test_sums_are_kept_in_the_wider_accumulator() -> None:
    assert common_accumulator(torch.float16, torch.bfloat16) == torch.float32
    assert common_accumulator(torch.float16, torch.float64) == torch.float64


def test_precisions_are_listed_from_the_most_exact() -> None:
    assert list(PRECISIONS.values()) == sorted(PRECISIONS.values())
    assert is_less_exact("tf32", "ieee")
    assert not is_less_exact("ieee", "ieee")


def test_no_other_module_tells_dtypes_apart_by_their_size() -> None:
    for path in (ROOT / "sddmm").rglob("*.py"):
        assert not re.search(r"itemsize\s*(==|!=|<|>)", path.read_text()), path
