"""The functions of libcusparse are called with the types of its header, in the library here."""

from __future__ import annotations

import ctypes

import pytest

from experiments.bench import cusparse
from tests.experiments.cusparse import C_TYPES, Fake, header


@pytest.mark.parametrize("product", ["SDDMM", "SpMM"])
def test_the_signatures_are_those_of_the_header(product: str) -> None:
    declared = {n: tuple(C_TYPES[x] for x in letters) for n, letters in header(product).items()}
    assert declared == cusparse.signatures(product)


def test_a_library_that_is_loaded_already_is_the_one_that_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maps = "7f00-7f10 r-xp 00000000 08:01 42   /some where/lib/libcusparse.so.12\n"
    monkeypatch.setattr(cusparse.Path, "read_text", lambda self: maps)
    fake = Fake("SpMM", lambda *arguments: None)
    opened: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda path: (opened.append(path), fake)[1])
    for looked_for_once in (cusparse.loaded_library, cusparse.loaded_functions):
        looked_for_once.cache_clear()
    assert cusparse.loaded_library("SpMM") is not None  # every public call needs a GPU
    assert opened == ["/some where/lib/libcusparse.so.12"]
    for looked_for_once in (cusparse.loaded_library, cusparse.loaded_functions):
        looked_for_once.cache_clear()  # the next test looks for the real one
