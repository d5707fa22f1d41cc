"""The picture of docs/how_it_works/call.md shows the files that a GPU call enters, in order."""

from __future__ import annotations

import pytest

from experiments import call_picture
from experiments.walk import first_and_later
from gemm_core.emulation.kernel import missing_compiler


@pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")
def test_the_picture_shows_the_files_that_both_calls_enter() -> None:
    first, later = first_and_later("pattern")
    assert set(first.files) == set(call_picture.steps())
    assert later.files == list(call_picture.steps(later=True))
